// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// Forked processes as ranks, without MPI. They give communicator<cuda_ipc> the host calls that it
// needs, over shared memory.

#include <atomic>
#include <cstring>
#include <vector>

#include <hvd/protocol/host_ranks.hpp>

namespace device_test {

// The area is zeroed, and all ranks map it before the fork.
struct fork_area {
    static constexpr std::size_t most_bytes = 1 << 16;
    std::atomic<unsigned> arrived;  // the arrivals at all meetings so far
    std::byte slots[4][most_bytes];
};

class fork_ranks final : public hvd::detail::host_ranks {
public:
    fork_ranks(fork_area& area, int rank, int size) : host_ranks(rank, size), area_(area) {}

    void allgather(std::span<const std::byte> mine, std::byte* all,
                   hvd::detail::time_point limit) override {
        if (mine.size() > fork_area::most_bytes)
            throw hvd::usage_error(rank(), "hvd: too many bytes for this test");
        std::memcpy(area_.slots[rank()], mine.data(), mine.size());
        meet(limit);
        for (int r = 0; r < size(); ++r)
            std::memcpy(all + std::size_t(r) * mine.size(), area_.slots[r], mine.size());
        meet(limit);
    }

    std::unique_ptr<host_ranks> split(int, int) override {
        throw hvd::usage_error(rank(), "hvd: forked ranks are not split");
    }

private:
    void meet(hvd::detail::time_point limit) {
        const unsigned everyone = ++meetings_ * unsigned(size());
        ++area_.arrived;
        hvd::detail::backoff pauses(true);
        while (int(area_.arrived.load() - everyone) < 0)
            if (pauses.pause() && hvd::detail::now() > limit)
                throw hvd::peer_error(rank(), "hvd: a forked rank did not come", {});
    }

    fork_area& area_;
    unsigned meetings_ = 0;
};

}  // namespace device_test
