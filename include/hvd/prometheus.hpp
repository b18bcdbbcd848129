// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to counts of calls as Prometheus reads them.
#include "standard.hpp"  // first: an older standard is told at once

#include "observe/prometheus.hpp"
