// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to elastic training over NCCL: elastic::run<hvd::nccl>, and device tensors in its state.
#include "nccl.hpp"

#include "elastic.hpp"
#include "train_device.hpp"

#include "elastic/nccl_part.hpp"
#include "elastic/saved_device.hpp"
