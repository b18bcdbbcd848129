// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "communicator.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

template <class Comm>
bool all_of(Comm& comm, bool mine) {
    int all = mine;
    comm.allreduce(all, hvd::min);
    return all != 0;
}

// Makes this rank's part of a communicator; where that fails on one rank, no other waits for it.
template <class Bootstrap, class F>
auto made_on_all(Bootstrap& bootstrap, const char* what, F&& make) {
    decltype(make()) made{};
    try {
        made = make();
    } catch (...) {
        if (bootstrap.size() > 1) all_of(bootstrap, false);
        throw;
    }
    if (bootstrap.size() > 1 && !all_of(bootstrap, true))
        throw peer_error(bootstrap.rank(),
                         text("hvd: ", what, " on rank ", bootstrap.rank(),
                              ": another rank has no usable GPU, or what else it needs"),
                         {});
    return made;
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
