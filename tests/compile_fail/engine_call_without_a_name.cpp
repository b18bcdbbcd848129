// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: a tensor of an engine has a name, which comes first

#include <vector>

#include <hvd/engine.hpp>
#include <hvd/threads.hpp>

void call(hvd::engine<hvd::threads>& engine, std::vector<float>& x) {
    engine.allreduce(x, hvd::average, {.priority = 1}).wait();       // BAD
    engine.allreduce("x", x, hvd::average, {.priority = 1}).wait();  // GOOD
}
