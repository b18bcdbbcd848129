// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: training on an engine needs #include <hvd/train_engine.hpp>
// LINES: gcc 16, it shows the way to the optimizer's base
// LINES: clang 22, it shows the way to the optimizer's base

#include <hvd/engine.hpp>
#include <hvd/train.hpp>

using optimizer = hvd::optimizers::sgd<float>;

void make(hvd::communicator<hvd::threads>& comm, hvd::engine<hvd::threads>& engine) {
    static_cast<void>(engine);
    hvd::distributed_optimizer distributed(engine, optimizer{});  // BAD
    hvd::distributed_optimizer distributed(comm, optimizer{});    // GOOD
}
