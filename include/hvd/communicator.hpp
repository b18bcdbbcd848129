// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to communicators without a backend, for programs that bring one of their own.
#include "standard.hpp"  // first: an older standard is told at once

#include "comm/communicator.hpp"
