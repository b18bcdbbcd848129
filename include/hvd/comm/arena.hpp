// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <cerrno>
#include <cstring>
#include <memory_resource>

#include "../core/tensor_view.hpp"
#include "../core/tuning.hpp"
#include "../platform/thread.hpp"
#include "../transport/shm/segments.hpp"
#include "arena_life.hpp"
#include "communicator.hpp"

namespace hvd::inline v0 {
namespace detail {

// Free memory of one rank, in blocks. The first block that is large enough is taken.
class free_list {
public:
    static constexpr std::size_t alignment = tuning::cache_line;

    // Afterwards `add` can't fail.
    void reserve_one() {
        regions_.reserve(regions_.size() + 1);
        reserve(regions_.size() + 1, given_);
    }
    void add(std::byte* data, std::size_t bytes) {
        regions_.push_back({data, bytes});
        free_.push_back({data, bytes});
    }

    // Returns null if no block is large enough. @throws std::bad_alloc
    std::byte* take(std::size_t bytes, std::size_t align) {
        reserve(regions_.size(), given_ + 1);
        for (std::size_t i = 0; i < free_.size(); ++i) {
            block& piece = free_[i];
            const std::size_t gap = -reinterpret_cast<std::uintptr_t>(piece.data) & (align - 1);
            if (gap > piece.bytes || bytes > piece.bytes - gap) continue;
            std::byte* const taken = piece.data + gap;
            const block rest{taken + bytes, piece.bytes - gap - bytes};
            piece.bytes = gap;
            if (rest.bytes > 0) free_.insert(free_.begin() + std::ptrdiff_t(i) + 1, rest);
            if (gap == 0) free_.erase(free_.begin() + std::ptrdiff_t(i));
            ++given_;
            return taken;
        }
        return nullptr;
    }

    // Joins the memory with its free neighbours. It needs no memory.
    void give_back(std::byte* data, std::size_t bytes) {
        --given_;
        std::size_t i = 0;
        while (i < free_.size() && free_[i].data < data) ++i;
        free_.insert(free_.begin() + std::ptrdiff_t(i), block{data, bytes});
        join(i);
        if (i > 0) join(i - 1);
    }

    const std::vector<block>& regions() const { return regions_; }
    std::size_t capacity() const { return sum(regions_); }
    std::size_t free_bytes() const { return sum(free_); }
    std::size_t largest() const {
        std::size_t most = 0;
        for (const block& piece : free_) most = piece.bytes > most ? piece.bytes : most;
        return most;
    }

private:
    // Makes room for all free blocks that there can be: what is given away lies between them. One
    // more is there for a moment, before it is joined.
    void reserve(std::size_t regions, std::size_t given) {
        const std::size_t most = regions + given + 1;
        if (free_.capacity() < most) free_.reserve(2 * most);
    }

    static std::size_t sum(const std::vector<block>& blocks) {
        std::size_t bytes = 0;
        for (const block& b : blocks) bytes += b.bytes;
        return bytes;
    }

    // Joins a block with the next if nothing lies between them. Regions are not joined, since a
    // tensor must lie in one.
    void join(std::size_t i) {
        if (i + 1 >= free_.size() || free_[i].data + free_[i].bytes != free_[i + 1].data) return;
        for (const block& region : regions_)
            if (region.data == free_[i + 1].data) return;
        free_[i].bytes += free_[i + 1].bytes;
        free_.erase(free_.begin() + std::ptrdiff_t(i) + 1);
    }

    std::vector<block> regions_, free_;
    std::size_t given_ = 0;  // blocks that are taken
};

}  // namespace detail

/// Memory that all ranks of a node have mapped. Tensors in it are reduced where they lie, without a
/// copy.
///
/// It is a `std::pmr::memory_resource`: `std::pmr::vector<float> gradient(n, &arena)` is enough.
/// Every collective recognises it by its address. That holds for any part of it, also through a
/// plain span, on the communicator it was made on and on those derived from it. Other ranks'
/// tensors may be at other places of their arenas. If some rank's tensor is not in an arena, data
/// moves as if none were.
///
/// If the backend shares no memory (nodes with one rank each, `direct<>`, a user's backend) it is
/// ordinary memory. On `threads` all memory can be reached, and an arena is a memory resource with
/// a limit.
///
/// **Lifetime**: allocated memory is valid as long as the arena, which outlives the calls on it.
/// Then the system has it back, and whoever uses it crashes. Its addresses stay reserved until all
/// ranks have ended it, and another arena of the communicator has been made or has grown. The
/// memory is private to the user, and nothing remains if its processes die.
///
/// After a call has failed, the memory is the caller's again: a rank that may still reach for it,
/// such as a stopped process, loses this rank's part, which becomes memory of this rank alone.
/// Tensors in it keep their addresses and values, and move as others that are not in an arena.
/// **Threads**: any thread allocates and frees memory; the other calls come from one at a time.
/// @snippet tests/docs/snippets.cpp arena
class [[nodiscard("hvd: the memory of an arena ends with it")]] arena
    : public std::pmr::memory_resource {
public:
    /// Makes an arena with room for `bytes` on this rank. Ranks may differ. **Collective**: all
    /// ranks of `comm`.
    /// All ranks get an arena, or all throw, within the communicator's timeout.
    /// @throws hvd::usage_error on all ranks if the system refuses the memory, naming the sizes.
    template <class Backend>
    [[nodiscard("hvd: the memory of an arena ends with it")]]
    arena(communicator<Backend>& comm, std::size_t bytes)
        : session_(&detail::access::session_of(comm)) {
        share_ = [](arena& self, std::span<const std::size_t> sizes) {
            auto& endpoint =
                static_cast<detail::backend_session<Backend>&>(*self.session_).endpoint();
            if constexpr (requires { endpoint.share(*self.session_, sizes); })
                return endpoint.share(*self.session_, sizes);
            else return self.own_memory(sizes[std::size_t(endpoint.rank())]);
        };
        unshare_ = [](arena& self, std::byte* memory) noexcept {
            auto& endpoint =
                static_cast<detail::backend_session<Backend>&>(*self.session_).endpoint();
            if constexpr (requires { endpoint.unshare(memory); }) endpoint.unshare(memory);
            else self.own_.pop_back();
        };
        auto& endpoint = static_cast<detail::backend_session<Backend>&>(*session_).endpoint();
        if constexpr (requires { endpoint.arenas(); }) segments_ = endpoint.arenas();
        grow(bytes);
    }

    arena(const arena&) = delete;
    arena& operator=(const arena&) = delete;

    ~arena() override {
        life_.end();
        for (const detail::block& region : memory_.regions()) unshare_(*this, region.data);
    }

    /// Adds room for `bytes` on this rank, in one piece. Ranks may differ. **Collective**: all
    /// ranks of the communicator that the arena was made on. Allocated memory stays where it is.
    /// @throws hvd::usage_error on all ranks if the system refuses the memory, naming the sizes.
    void grow(std::size_t bytes) {
        constexpr std::size_t a = detail::free_list::alignment;
        const std::uint64_t mine =
            bytes > SIZE_MAX - a ? SIZE_MAX / a * a : (bytes + a - 1) / a * a;
        std::vector<std::size_t> requested;
        const std::uint64_t given_up = tell(mine, requested);
        refusal why;
        std::byte* memory = share_on_all(requested, why);
        // Only now, so that the new memory lies elsewhere than arenas that have just ended. Where
        // the system refused, it may have been for want of their addresses.
        if (segments_) segments_->unmap(given_up);
        if (memory == nullptr && given_up != 0) {
            detail::run_on_all(*session_, "arena", detail::never, [&] { segments_->prepare(); });
            memory = share_on_all(requested, why);
        }
        if (memory == nullptr) throw_refused(requested, why);
        const detail::lock_guard held(mutex_);
        memory_.add(memory, mine);
    }

    /// Returns a tensor of the given shape, aligned to a cache line and uninitialised. It lives as
    /// long as the arena, so it is for tensors that are allocated once.
    /// @throws hvd::usage_error if there is no room.
    template <element T, std::size_t Rank>
    tensor_view<T, host, Rank> tensor(const extents<Rank>& shape) {
        const std::size_t sizes[] = {detail::product(shape.data(), Rank), sizeof(T)};
        if (sizes[0] == 0) return {nullptr, shape};
        return {static_cast<T*>(allocate(detail::product(sizes, 2), detail::free_list::alignment)),
                shape};
    }

    /// The bytes that this rank may allocate in all.
    std::size_t capacity() const noexcept {
        const detail::lock_guard held(mutex_);
        return memory_.capacity();
    }
    /// The bytes that are free on this rank, in all blocks.
    std::size_t available() const noexcept {
        const detail::lock_guard held(mutex_);
        return memory_.free_bytes();
    }

private:
    friend detail::arena_access;

    // Tells all ranks the bytes that this rank requests and the arenas that it has given up.
    // Returns those that all have, as segments::unmap() takes them.
    std::uint64_t tell(std::size_t mine, std::vector<std::size_t>& requested) {
        const bool has = bool(segments_);
        const std::int64_t told[] = {std::int64_t(mine),
                                     has ? std::int64_t(segments_->history()) : 0,
                                     has ? std::int64_t(segments_->given_up()) : 0};
        const auto all = detail::numbers_of_all(*session_, "arena", told, detail::never);
        // The ranks of a node wait for each other where they share memory: so all of them must
        // come.
        detail::run_on_all(*session_, "arena", detail::never, [&] {
            for (std::size_t i = 0; i < all.size(); i += 3)
                requested.push_back(std::size_t(all[i]));
            reserve_one();
            if (segments_) segments_->prepare();
        });
        std::uint64_t given_up = UINT64_MAX;
        for (std::size_t i = 0; i < all.size(); i += 3)
            given_up &= all[i + 1] == all[1] ? std::uint64_t(all[i + 2]) : 0;
        return given_up;
    }

    // The rank that the system refused, and the error.
    struct refusal {
        int rank = -1;
        std::int64_t error = 0;
    };

    // This rank's part of memory that all ranks have, or null on all.
    std::byte* share_on_all(const std::vector<std::size_t>& requested, refusal& why) {
        std::byte* memory = nullptr;
        try {
            detail::run_on_all(*session_, "arena", detail::never, [&] {
                if (total(requested) < most) memory = share_(*this, requested);
            });
            const std::int64_t error = memory != nullptr ? 0 : own_error();
            const auto all = detail::numbers_of_all(*session_, "arena", {&error, 1}, detail::never);
            why = {};
            // One that has none because of another rank knows no error.
            for (std::size_t r = all.size(); r-- > 0;)
                if (all[r] > 0 || (all[r] != 0 && why.rank < 0)) why = {int(r), all[r]};
            if (why.rank >= 0 && memory != nullptr) unshare_(*this, std::exchange(memory, nullptr));
        } catch (...) {
            if (memory != nullptr) unshare_(*this, memory);
            throw;
        }
        return memory;
    }

    void reserve_one() {
        const detail::lock_guard held(mutex_);
        memory_.reserve_one();
    }

    static std::size_t padded(std::size_t bytes) {
        constexpr std::size_t a = detail::free_list::alignment;
        return bytes == 0 ? a : (bytes + a - 1) / a * a;
    }

    void* do_allocate(std::size_t bytes, std::size_t align) override {
        align = align < detail::free_list::alignment ? detail::free_list::alignment : align;
        const detail::lock_guard held(mutex_);
        std::byte* const memory =
            bytes > memory_.capacity() ? nullptr : memory_.take(padded(bytes), align);
        if (memory == nullptr)
            throw usage_error(
                session_->rank(),
                detail::text("hvd: arena on rank ", session_->rank(), ": ", bytes,
                             " bytes asked for, of ", memory_.capacity(), " bytes ",
                             memory_.free_bytes(), " are free, ", memory_.largest(),
                             " of them in one piece; grow(bytes) on all ranks adds more"));
        return memory;
    }
    void do_deallocate(void* memory, std::size_t bytes, std::size_t) override {
        const detail::lock_guard held(mutex_);
        memory_.give_back(static_cast<std::byte*>(memory), padded(bytes));
    }
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
        return this == &other;
    }

    std::byte* own_memory(std::size_t bytes) {
        own_.push_back(detail::shared_memory::of_this_process(bytes));
        return static_cast<std::byte*>(own_.back().data());
    }

    std::int64_t own_error() const {
        if (!segments_) return ENOMEM;
        return segments_->refusal() != 0 ? segments_->refusal() : -1;
    }

    [[gnu::cold, noreturn]] void throw_refused(const std::vector<std::size_t>& requested,
                                               const refusal& why) const {
        const int error = why.error > 0 ? int(why.error) : ENOMEM;
        throw usage_error(
            session_->rank(),
            detail::text("hvd: arena on rank ", session_->rank(), ": the system gave no ",
                         requested[std::size_t(session_->rank())],
                         " bytes of memory for this rank, of ", total(requested),
                         " for all ranks: rank ", why.rank, " was told: ", strerror(error),
                         error == ENOMEM || error == ENOSPC ? "; is there as much memory?" : ""));
    }

    // No machine has more memory: the addresses of its pages would wrap round.
    static constexpr std::size_t most = SIZE_MAX / (sizeof(std::size_t) > 4 ? 256 : 2);

    static std::size_t total(const std::vector<std::size_t>& bytes) {
        std::size_t all = 0;
        for (const std::size_t n : bytes)
            if (__builtin_add_overflow(all, n, &all)) return SIZE_MAX;
        return all;
    }

    detail::shared<detail::session> session_;
    std::byte* (*share_)(arena&, std::span<const std::size_t>) = nullptr;
    void (*unshare_)(arena&, std::byte*) noexcept = nullptr;  // takes back what share_ gave last
    detail::shared<detail::segments> segments_;               // of a backend that shares some
    std::vector<detail::shared_memory> own_;  // memory of a backend that shares none
    mutable detail::mutex mutex_;             // of the list, which several threads may change
    detail::asked_life life_;
    detail::free_list memory_;
};

}  // namespace hvd::inline v0
