// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <hvd/threads.hpp>

// Two ranks sum what they have.
int main() {
    int sum = 0;
    hvd::run_threads(2, [&](hvd::communicator<hvd::threads>& world) {
        int mine = world.rank() + 1;
        world.allreduce(mine, hvd::sum);
        if (world.rank() == 0) sum = mine;
    });
    return sum == 3 ? 0 : 1;
}
