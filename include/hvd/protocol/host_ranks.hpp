// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <exception>
#include <memory>
#include <span>

#include "../platform/clock.hpp"
#include "call_header.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// The same ranks on a communicator of the host, whose backend only its maker knows. All calls are
// collective.
class host_ranks {
public:
    host_ranks(int rank, int size) : rank_(rank), size_(size) {}
    host_ranks(const host_ranks&) = delete;
    host_ranks& operator=(const host_ranks&) = delete;
    virtual ~host_ranks() = default;

    int rank() const { return rank_; }
    int size() const { return size_; }

    // As many bytes of every rank, one after the other.
    virtual void allgather(std::span<const std::byte> mine, std::byte* all, time_point limit) = 0;

    // Null for a negative colour.
    virtual std::unique_ptr<host_ranks> split(int color, int key) = 0;

    template <class T>
    std::vector<T> all(const T& mine, time_point limit) {
        static_assert(std::is_trivially_copyable_v<T>);
        std::vector<T> values(static_cast<std::size_t>(size_));
        allgather({reinterpret_cast<const std::byte*>(&mine), sizeof mine},
                  reinterpret_cast<std::byte*>(values.data()), limit);
        return values;
    }

    // Throws what the headers of all ranks make necessary, on all of them.
    void agree(const call_header& mine, time_point limit) {
        check_headers(rank_, all(mine, limit));
    }

    // Does what may fail on one rank; where it does, all are told.
    template <class F>
    void on_all(const char* what, time_point limit, F&& f) {
        call_header mine;
        mine.kind = collective::agree;
        store(mine.name, what);
        std::exception_ptr failure;
        try {
            f();
        } catch (...) {
            failure = std::current_exception();
            mine.refused = true;
            store(mine.text, what_of(failure));
        }
        try {
            agree(mine, limit);
        } catch (const error&) {
            if (failure) std::rethrow_exception(failure);
            throw;
        }
    }

private:
    int rank_, size_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
