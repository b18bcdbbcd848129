// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// This header is precompiled for the tests of the device path. Each test still includes the headers
// that it uses.
#include "hvd_test.hpp"

#include "../support.hpp"
