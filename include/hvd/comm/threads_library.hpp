// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../backend/checked.hpp"
#include "../backend/threads.hpp"
#include "../core/compiled.hpp"
#include "communicator.hpp"

// The communicators of threads that libhvd holds.
namespace hvd {
inline namespace v0 {

HVD_INSTANTIATE class HVD_API communicator<threads>;
HVD_INSTANTIATE class HVD_API communicator<checked<threads>>;

}  // namespace v0
}  // namespace hvd
