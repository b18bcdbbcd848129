// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Precompiled for the tests of the device path: each still includes what it uses.
#include "hvd_test.hpp"

#include "../support.hpp"
