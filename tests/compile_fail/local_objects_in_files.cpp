// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: persist_in: an elastic state with local objects is not kept in files

#include <hvd/elastic.hpp>

void keep(std::vector<float>& weights) {
    hvd::elastic::local shard{weights};
    hvd::elastic::state state{shard};    // BAD
    hvd::elastic::state state{weights};  // GOOD
    state.persist_in("/dev/shm");
}
