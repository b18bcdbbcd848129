// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: an engine has for tensors of devices allreduce, allgather, broadcast

#include <hvd/engine.hpp>
#include <hvd/threads.hpp>

void call(hvd::engine<hvd::threads>& engine, float* memory) {
    (void)engine.gather("rows", hvd::device_view(memory, 4));  // BAD
    (void)engine.gather("rows", hvd::view(memory, 4));         // GOOD
}
