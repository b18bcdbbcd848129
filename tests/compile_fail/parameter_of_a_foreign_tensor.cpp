// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: or a type with hvd::view_traits

#include <vector>

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

struct foreign_tensor {
    float* data;
    int count;
};

using optimizer =
    hvd::distributed_optimizer<hvd::communicator<hvd::threads>, hvd::optimizers::sgd<float>>;

void call(optimizer& o, foreign_tensor& weights, std::vector<float>& gradient) {
    o.register_parameter("weights", weights, gradient);                                   // BAD
    o.register_parameter("weights", hvd::view(weights.data, gradient.size()), gradient);  // GOOD
}
