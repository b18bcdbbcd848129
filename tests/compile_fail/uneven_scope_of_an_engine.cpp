// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: call engine.join()

#include <hvd/train_engine.hpp>

void train(hvd::communicator<hvd::threads>& comm, hvd::engine<hvd::threads>& engine) {
    static_cast<void>(engine);
    static_cast<void>(comm);
    hvd::uneven_scope scope(engine);  // BAD
    hvd::uneven_scope scope(comm);    // GOOD
    scope.begin_step(1);
}
