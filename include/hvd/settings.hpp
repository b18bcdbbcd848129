// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to options from the environment. Those from a file are in interop/options_file.hpp.
#include "standard.hpp"  // first: an older standard is told at once

#include "core/settings/configuration.hpp"
