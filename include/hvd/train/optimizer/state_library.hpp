// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/compiled.hpp"
#include "state.hpp"

// The instantiations that libhvd holds for the communicators of a backend: a distributed optimizer
// of float around each of hvd's own.
#define HVD_OPTIMIZER(B, O)                                                                       \
    HVD_INSTANTIATE HVD_API void broadcast_parameters(distributed_optimizer<communicator<B>, O>&, \
                                                      root);                                      \
    HVD_INSTANTIATE HVD_API void broadcast_optimizer_state(                                       \
        distributed_optimizer<communicator<B>, O>&, root);

#define HVD_OPTIMIZERS(B)                      \
    HVD_OPTIMIZER(B, optimizers::sgd<float>)   \
    HVD_OPTIMIZER(B, optimizers::adam<float>)  \
    HVD_OPTIMIZER(B, optimizers::adamw<float>) \
    HVD_OPTIMIZER(B, optimizers::adadelta<float>)

namespace hvd::inline v0::detail {

// All backends have these in common.
HVD_INSTANTIATE class HVD_API gradient_reducer<ordered_steps>;
HVD_INSTANTIATE class HVD_API typed_gradients<ordered_steps, float>;
HVD_INSTANTIATE class HVD_API host_gradients<ordered_steps, float>;
HVD_INSTANTIATE HVD_API owner<bucket_feedback<any_communicator>> make_feedback<void>(
    const any_communicator&, const feedback_arguments&);

}  // namespace hvd::inline v0::detail
