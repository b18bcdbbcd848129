// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>
#include <span>

#include "received_headers.hpp"

namespace hvd::inline v0::detail {

// The ranks of a device communicator on a communicator of the host, whose backend only its maker
// knows. All calls are collective.
class host_ranks {
public:
    host_ranks(int rank, int size) : rank_(rank), size_(size) {}
    host_ranks(const host_ranks&) = delete;
    host_ranks& operator=(const host_ranks&) = delete;
    virtual ~host_ranks() = default;

    int rank() const { return rank_; }
    int size() const { return size_; }

    // Every rank gives as many bytes; `all` gets them in the order of the ranks.
    virtual void allgather(std::span<const std::byte> mine, std::byte* all, time_point limit) = 0;

    // Null where the colour is negative.
    virtual std::unique_ptr<host_ranks> split(int color, int key) = 0;

    template <class T>
    std::vector<T> all(const T& mine, time_point limit) {
        static_assert(std::is_trivially_copyable_v<T>);
        std::vector<T> values(static_cast<std::size_t>(size_));
        allgather({reinterpret_cast<const std::byte*>(&mine), sizeof mine},
                  reinterpret_cast<std::byte*>(values.data()), limit);
        return values;
    }

    // A channel of agreement.hpp.
    table<call_header> exchange_headers(const call_header& mine, time_point limit) {
        table<call_header> all(static_cast<std::size_t>(size_));
        allgather({reinterpret_cast<const std::byte*>(&mine), sizeof mine},
                  reinterpret_cast<std::byte*>(all.data()), limit);
        replace_other_bytes(all);
        return all;
    }

private:
    int rank_, size_;
};

}  // namespace hvd::inline v0::detail
