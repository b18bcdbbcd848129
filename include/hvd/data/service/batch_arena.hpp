// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../platform/host_identity.hpp"
#include "../../platform/shared_memory.hpp"
#include "../../platform/thread.hpp"
#include "../../protocol/call_header.hpp"
#include "../../transport/tcp/handshake.hpp"
#include "../../transport/tcp/launcher_variables.hpp"

namespace hvd::inline v0::detail {

// Shared memory into which a worker writes batches for a trainer of its host. The trainer makes it
// for one connection, as a file without a name: when both processes have ended, however they do, it
// is gone. A request lends a slot to the worker. Sizes and numbers come by the connection, whose
// frames are authenticated, and none are read out of the memory.
//
// The first page has a number that was drawn for it, by which the worker knows the right file.

// A trainer's message to a worker about its memory.
struct arena_offer {
    shared_memory::ticket ticket;
    shared_secret number;
    std::uint64_t slots = 0, slot_bytes = 0;
};
static_assert(std::is_trivially_copyable_v<arena_offer>);

constexpr std::size_t arena_front = 65536;  // bytes before the first slot
constexpr std::uint64_t most_arena_slots = 65536;
constexpr std::uint64_t most_arena_bytes = std::uint64_t(1) << 40;

// A number for this host in a hello. 0 for a process that does not share memory.
inline std::uint64_t sharing_host(bool shares) {
    if (!shares || !HVD_LINUX) return 0;  // files without a name are Linux's
    const auto options = launched_options<tcp_options>();
    return options.host_id.empty() ? host_identity() : hash().add(options.host_id).value();
}

// The trainer's side. It lives as long as answers that lie in it.
class batch_arena : public std::enable_shared_from_this<batch_arena> {
public:
    // A slot on loan. The destructor gives it back.
    class slot {
    public:
        slot() = default;
        slot(slot&& other) noexcept
            : arena_(std::move(other.arena_)), number_(other.number_), bytes_(other.bytes_) {}
        slot& operator=(slot&& other) noexcept {
            std::swap(arena_, other.arena_);
            std::swap(number_, other.number_);
            std::swap(bytes_, other.bytes_);
            return *this;
        }
        ~slot() {
            if (arena_) arena_->give_back(number_);
        }

        explicit operator bool() const { return arena_ != nullptr; }
        std::uint64_t number() const { return number_; }
        std::size_t capacity() const { return arena_ ? arena_->slot_bytes() : 0; }
        void holds(std::size_t bytes) {
            bytes_ = bytes;
            arena_->was_opened();
        }
        std::span<const std::byte> contents() const {
            return {arena_->front() + number_ * arena_->slot_bytes(), bytes_};
        }

    private:
        friend batch_arena;
        slot(std::shared_ptr<batch_arena> arena, std::uint64_t number)
            : arena_(std::move(arena)), number_(number) {}

        std::shared_ptr<batch_arena> arena_;
        std::uint64_t number_ = 0;
        std::size_t bytes_ = 0;
    };

    // Gives nothing if the system has no memory for it.
    static std::shared_ptr<batch_arena> make(std::size_t slots, std::size_t slot_bytes) {
        auto made = std::make_shared<batch_arena>();
        const std::size_t all = arena_front + slots * slot_bytes;
        made->memory_ = shared_memory::create(all, false);
        if (!made->memory_ || made->memory_.reserve(0, all) != 0) return nullptr;
        made->offer_ = {made->memory_.how_to_open(), new_number(), slots, slot_bytes};
        std::memcpy(made->memory_.data(), &made->offer_.number, sizeof made->offer_.number);
        for (std::size_t i = slots; i > 0; --i) made->free_.push_back(i - 1);
        return made;
    }

    const arena_offer& offer() const { return offer_; }
    std::size_t slots() const { return std::size_t(offer_.slots); }
    std::size_t slot_bytes() const { return std::size_t(offer_.slot_bytes); }

    // The slot that was given back last, whose memory the caches still have.
    slot take() {
        const lock_guard held(mutex_);
        if (free_.empty()) return {};
        const std::uint64_t number = free_.back();
        free_.pop_back();
        return {shared_from_this(), number};
    }

private:
    // The worker has opened it, and nobody else does.
    void was_opened() { memory_.close_file(); }

    static shared_secret new_number() {
        shared_secret drawn;
        fill_random(-1, drawn.data(), drawn.size());
        return drawn;
    }
    const std::byte* front() const {
        return static_cast<const std::byte*>(memory_.data()) + arena_front;
    }
    void give_back(std::uint64_t number) {
        const lock_guard held(mutex_);
        free_.push_back(number);
    }

    shared_memory memory_;
    arena_offer offer_;
    mutex mutex_;
    std::vector<std::uint64_t> free_;
};

// The worker's side. It has no slots if the memory can't be opened, as from another container.
class opened_arena {
public:
    opened_arena() = default;
    explicit opened_arena(const arena_offer& offer) {
        if (!is_sane(offer)) return;
        memory_ = shared_memory::open(offer.ticket, arena_front + offer.slots * offer.slot_bytes);
        if (!memory_ || std::memcmp(memory_.data(), &offer.number, sizeof offer.number) != 0)
            return;
        memory_.close_file();
        slots_ = offer.slots;
        slot_bytes_ = std::size_t(offer.slot_bytes);
    }

    // The room of a slot: nothing for a number that does not exist.
    std::span<std::byte> slot(std::uint64_t number) const {
        if (number >= slots_) return {};
        return {static_cast<std::byte*>(memory_.data()) + arena_front + number * slot_bytes_,
                slot_bytes_};
    }

private:
    static bool is_sane(const arena_offer& o) {
        return o.ticket.path[sizeof o.ticket.path - 1] == 0 &&
               std::string_view(o.ticket.path).starts_with("/proc/") && o.slots > 0 &&
               o.slots <= most_arena_slots && o.slot_bytes > 0 &&
               o.slot_bytes <= most_arena_bytes / o.slots;
    }

    shared_memory memory_;
    std::uint64_t slots_ = 0;
    std::size_t slot_bytes_ = 0;
};

}  // namespace hvd::inline v0::detail
