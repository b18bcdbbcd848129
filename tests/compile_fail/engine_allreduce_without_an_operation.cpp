// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the operation is missing: write hvd::sum, hvd::average
// LINES: clang 16, it shows the way to the call

#include <vector>

#include <hvd/engine.hpp>
#include <hvd/threads.hpp>

void call(hvd::engine<hvd::threads>& engine, std::vector<float>& x) {
    engine.allreduce("x", x).wait();                // BAD
    engine.allreduce("x", x, hvd::average).wait();  // GOOD
}
