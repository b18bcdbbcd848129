// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: an optimizer has step(parameters, gradients) for tensors of this element type

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

template <class Optimizer>
using of_doubles = hvd::distributed_optimizer<hvd::communicator<hvd::threads>, Optimizer, double>;

void train(hvd::communicator<hvd::threads>& comm) {
    of_doubles<hvd::optimizers::sgd<float>> all(comm, {});   // BAD
    of_doubles<hvd::optimizers::sgd<double>> all(comm, {});  // GOOD
}
