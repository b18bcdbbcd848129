// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to the data service: pipelines whose batches other processes make. It needs
// nlohmann-json.
#include "standard.hpp"  // first: an older standard is told at once

#include "data.hpp"
#include "data/service/dispatcher.hpp"
#include "data/service/send.hpp"
#include "data/service/service_config.hpp"
#include "data/service/training_dispatcher.hpp"
#include "data/service/worker.hpp"
