// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/compiled.hpp"
#include "metrics.hpp"
#include "uneven.hpp"

// The instantiations of training that libhvd holds for the communicators of a backend.
#define HVD_TRAINING(B)                                          \
    HVD_INSTANTIATE class HVD_API uneven_scope<communicator<B>>; \
    HVD_INSTANTIATE HVD_API void average_metrics(communicator<B>&, std::vector<metric>&, double);
