// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <exception>
#include <vector>

#include "communicator.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Compares the headers of all ranks: throws what they make necessary, on all of them.
template <class Comm>
void compare_headers(Comm& comm, const call_header& mine, time_span deadline) {
    std::vector<call_header> all(static_cast<std::size_t>(comm.size()));
    comm.allgather(
        tensor_view<const std::byte>(reinterpret_cast<const std::byte*>(&mine), {sizeof mine}),
        into(tensor_view<std::byte>(reinterpret_cast<std::byte*>(all.data()),
                                    {sizeof mine * all.size()})),
        {.deadline = deadline});
    check_headers(comm.rank(), all);
}

// Before calls of the bootstrap that know no deadline: a rank that comes here comes to them too.
template <class Bootstrap>
void meet_before_making(Bootstrap& bootstrap, const communicator_options& options) {
    if (bootstrap.size() > 1 && options.deadline.nanoseconds() != 0)
        bootstrap.barrier({.deadline = options.deadline});
}

// Makes this rank's part of a communicator; where that fails on one rank, the others do not wait
// for it, and are told why.
template <class Bootstrap, class F>
auto made_on_all(Bootstrap& bootstrap, const char* what, time_span deadline, F&& make) {
    decltype(make()) made{};
    call_header mine;
    mine.kind = collective::agree;
    store(mine.name, what);
    std::exception_ptr failure;
    try {
        made = make();
    } catch (...) {
        failure = std::current_exception();
        mine.refused = true;
        store(mine.text, what_of(failure));
    }
    try {
        if (bootstrap.size() > 1) compare_headers(bootstrap, mine, deadline);
    } catch (const error&) {
        if (!failure) throw;
    }
    if (failure) std::rethrow_exception(failure);
    return made;
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
