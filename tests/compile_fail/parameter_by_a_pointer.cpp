// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: a pointer does not say how many elements it points to: hvd::view(pointer, count)

#include <vector>

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

using communicator = hvd::communicator<hvd::threads>;
using optimizer = hvd::distributed_optimizer<communicator, hvd::optimizers::sgd<float>>;

void call(optimizer& all, float* w, float* dw) {
    all.register_parameter("weights", w, dw);                                // BAD
    all.register_parameter("weights", hvd::view(w, 10), hvd::view(dw, 10));  // GOOD
}
