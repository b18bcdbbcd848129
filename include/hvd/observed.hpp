// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to hvd::observed. hvd/hvd.hpp includes it.
#include "standard.hpp"  // first: an older standard is told at once

#include "backend/observed.hpp"
