// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to elastic training over hvd::tcp: elastic::run and the state that it keeps.
#include "standard.hpp"  // first: an older standard is told at once

#include "tcp.hpp"
#include "train.hpp"

#include "elastic/run.hpp"
#include "version.hpp"
