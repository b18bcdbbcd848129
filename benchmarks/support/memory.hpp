// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <memory_resource>
#include <string>
#include <vector>

#include <hvd/hvd.hpp>

#if __has_include(<hvd/arena.hpp>)
#include <hvd/arena.hpp>
#define BENCH_HAS_ARENA 1
#else
#define BENCH_HAS_ARENA 0
#endif

namespace bench {

/// A kind of memory for tensors, by name.
struct memory_kind {
    std::string name;  // "plain" or "arena"
    std::pmr::memory_resource* memory;
};

/// Calls `f(kinds)` with the kinds of memory that this hvd has, each with room for `bytes` of
/// tensors.
template <class Comm, class F>
void with_memory(Comm& comm, std::size_t bytes, F&& f) {
    std::vector<memory_kind> kinds{{"plain", std::pmr::new_delete_resource()}};
#if BENCH_HAS_ARENA
    hvd::arena arena{comm, bytes + (std::size_t(1) << 20)};  // and room for alignment
    kinds.push_back({"arena", &arena});
#endif
    f(kinds);
    (void)comm, (void)bytes;
}

}  // namespace bench
