// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../backend/checked.hpp"
#include "../backend/observed.hpp"
#include "../observe/statistics.hpp"
#include "arena.hpp"

// Everything of hvd.hpp but backends and the process-wide communicator.
