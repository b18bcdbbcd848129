// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/lean/atomic.hpp"
#include "../../platform/shared_memory.hpp"
#include "message.hpp"
#include "stream_values.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// A rank's place on the board. Only its owner writes it; the owner's streams write `turn`. All
// zeros are an empty place.
struct ipc_board_place {
    // A rank is at most so many calls ahead of the slowest comparison.
    static constexpr std::size_t most_calls = 32;

    alignas(64) atomic<std::uint32_t> turn;       // the latest turn of its streams
    alignas(64) atomic<std::uint64_t> announced;  // the last turn for which they have work
    atomic<std::uint64_t> posted;                 // calls that are on the board
    atomic<std::uint64_t> compared;               // calls that this rank has compared
    atomic<bool> left;                            // no further calls come
    atomic<bool> gave_up;
    alignas(64) ipc_message entries[most_calls];
};

// Host memory of all ranks on which they post their calls, and which their streams read and write.
// The threads of a process have one mapping of it.
class ipc_board {
public:
    ipc_board(shared_memory memory, std::size_t bytes)
        : memory_(std::move(memory)), registered_(memory_.data(), bytes), data_(memory_.data()) {}
    ipc_board(const ipc_board&) = delete;
    ipc_board& operator=(const ipc_board&) = delete;
    ~ipc_board() {
        if (!kept_.load()) return;
        registered_.leave();
        memory_.leave();
    }

    static std::size_t bytes_for(int ranks) {
        return shared_memory::whole_part(64 + std::size_t(ranks) * sizeof(ipc_board_place));
    }

    // The first word: 0, or how the communicator was given up.
    atomic<std::uint64_t>& given_up() const { return *static_cast<atomic<std::uint64_t>*>(data_); }
    ipc_board_place& of(int rank) const { return at(data_, rank); }

    // Returns the turn of a rank as streams of the current device see it, or null.
    std::uint32_t* turn_on_device(int rank) const {
        void* const seen = registered_.seen_by_device();
        if (seen == nullptr) return nullptr;
        return reinterpret_cast<std::uint32_t*>(&at(seen, rank).turn);
    }

    void all_have_it() { memory_.all_have_it(); }
    // Leaves it to the end of the process: streams may still use it.
    void keep() noexcept { kept_.store(true); }

private:
    static ipc_board_place& at(void* memory, int rank) {
        return reinterpret_cast<ipc_board_place*>(static_cast<std::byte*>(memory) + 64)[rank];
    }

    shared_memory memory_;
    registered_memory registered_;
    void* data_;
    atomic<bool> kept_ = false;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
