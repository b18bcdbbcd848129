// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "trainer.hpp"

namespace torch_mnist {

/// Trains with hvd on the ranks' GPUs. `backend` is nccl or staged.
trainer on_gpus(world& ranks, const std::string& backend, double rate);

}  // namespace torch_mnist
