// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/compiled.hpp"
#include "checkpoint.hpp"

// The instantiations that libhvd holds for the communicators of a backend: checkpoints of the
// distributed optimizers in optimizer/state_library.hpp.
#define HVD_CHECKPOINT(B, O)                                                                      \
    HVD_INSTANTIATE HVD_API void save_checkpoint(                                                 \
        const std::string&, distributed_optimizer<communicator<B>, O>&, const training_progress&, \
        const checkpoint_metadata&, const checkpoint_options&);                                   \
    HVD_INSTANTIATE HVD_API training_progress load_checkpoint(                                    \
        const std::string&, distributed_optimizer<communicator<B>, O>&,                           \
        const checkpoint_options&);

#define HVD_CHECKPOINTS(B)                      \
    HVD_CHECKPOINT(B, optimizers::sgd<float>)   \
    HVD_CHECKPOINT(B, optimizers::adam<float>)  \
    HVD_CHECKPOINT(B, optimizers::adamw<float>) \
    HVD_CHECKPOINT(B, optimizers::adadelta<float>)
