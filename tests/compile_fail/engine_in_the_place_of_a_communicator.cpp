// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: this takes a communicator, not an engine

#include <hvd/train/engine.hpp>

void average(hvd::communicator<hvd::threads>& comm, hvd::engine<hvd::threads>& engine,
             std::vector<hvd::metric>& metrics) {
    static_cast<void>(engine);
    static_cast<void>(comm);
    hvd::average_metrics(engine, metrics, 1);  // BAD
    hvd::average_metrics(comm, metrics, 1);    // GOOD
}
