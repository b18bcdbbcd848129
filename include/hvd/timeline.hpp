// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "hvd.hpp"

#include "comm/start_timeline.hpp"
