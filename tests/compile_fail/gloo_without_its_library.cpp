// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: there is no Gloo here: <gloo/transport/tcp/device.h> is not on the include path
// FLAGS: -DHVD_WITH_GLOO=0

#include <vector>

#include <hvd/threads.hpp>

#include <hvd/interop/gloo.hpp>

void call(std::vector<float>& values) {
    auto world = hvd::communicator<hvd::gloo>::world();     // BAD
    auto world = hvd::communicator<hvd::threads>::world();  // GOOD
    world.allreduce(values, hvd::sum);
}
