// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "restart.hpp"

#include <cstdio>

namespace hvdrun {

int run_again(int restarts, const std::function<run_end()>& run) {
    for (int again = 1;; ++again) {
        const run_end ended = run();
        if (ended.code == 0 || ended.is_for_good || again > restarts) return ended.code;
        std::fprintf(stderr, "hvdrun: the job ended with %d; it is started again (%d of %d)\n",
                     ended.code, again, restarts);
    }
}

}  // namespace hvdrun
