// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// Threads as ranks that reach only each other's arenas, as processes do. Their plain memory passes
// through the windows, where the sanitizers of one process see every access.

#include <sys/mman.h>

#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <hvd/threads.hpp>

namespace hvd_test {

// The memory that the ranks of one communicator reach. Each use of share() makes one segment for
// all ranks, in the order of the calls.
class reachable_memory {
public:
    explicit reachable_memory(hvd::detail::shared<hvd::detail::threads_hub> hub,
                              hvd::detail::shared<hvd::detail::segments> parent = {})
        : hub(std::move(hub)),
          reachable(hvd::detail::shared<hvd::detail::segments>::make(std::move(parent))) {}

    // Returns the part of `rank` in the segment of its call number `number`.
    std::byte* part(std::size_t number, int rank, std::span<const std::size_t> bytes) {
        using hvd::detail::shared_memory;
        const std::lock_guard lock(mutex_);
        if (number == begins_.size()) {
            std::size_t all = 0;
            for (const std::size_t b : bytes) all += shared_memory::whole_pages(b);
            auto memory = shared_memory::of_this_process(all);
            begins_.push_back(static_cast<std::byte*>(memory.data()));
            reachable->prepare();
            reachable->begin();
            if (memory) reachable->add(first_id() + number, std::move(memory), all, 0, 0);
        }
        std::byte* at = begins_[number];
        for (int p = 0; at != nullptr && p < rank; ++p)
            at += shared_memory::whole_pages(bytes[std::size_t(p)]);
        return at;
    }

    // Returns the memory of the communicator that has this hub.
    std::shared_ptr<reachable_memory> child(
        const hvd::detail::shared<hvd::detail::threads_hub>& of) {
        const std::lock_guard lock(mutex_);
        for (const auto& known : children_)
            if (known->hub.get() == of.get()) return known;
        return children_.emplace_back(std::make_shared<reachable_memory>(of, reachable));
    }

    const hvd::detail::shared<hvd::detail::threads_hub> hub;
    const hvd::detail::shared<hvd::detail::segments> reachable;

private:
    // The numbers of a communicator's segments differ from those of its parents.
    std::uint64_t first_id() const { return reinterpret_cast<std::uintptr_t>(this); }

    std::mutex mutex_;
    std::vector<std::byte*> begins_;
    std::vector<std::shared_ptr<reachable_memory>> children_;
};

inline std::shared_ptr<reachable_memory> memory_of(int ranks,
                                                   const hvd::communicator_options& options) {
    using namespace hvd::detail;
    return std::make_shared<reachable_memory>(shared<threads_hub>::make(
        nodes_of_one_host(ranks, options),
        shm_region::window_for(ranks, hvd::detail::window_bytes_of(options)),
        processor_set::of_this_thread()));
}

class apart_endpoint : public hvd::detail::threads_endpoint {
public:
    apart_endpoint(std::shared_ptr<reachable_memory> memory, int rank)
        : threads_endpoint(memory->hub, rank),
          memory_(std::move(memory)),
          region_(threads_endpoint::region()->slots(), size(),
                  threads_endpoint::region()->window_bytes(), memory_->reachable) {}

    static std::unique_ptr<apart_endpoint> world(const hvd::communicator_options& options) {
        return std::make_unique<apart_endpoint>(memory_of(1, options), 0);
    }

    const hvd::detail::shm_region* region() const { return &region_; }
    template <class Channel>
    std::byte* share(Channel&, std::span<const std::size_t> bytes) {
        const std::size_t mine = bytes[std::size_t(rank())];
        return parts_.emplace_back(memory_->part(parts_.size(), rank(), bytes), mine).first;
    }
    // The pages of this rank's part go back; the segment stays as long as the communicator.
    void unshare(std::byte* part) noexcept {
        for (const auto& [data, bytes] : parts_)
            if (data == part && part != nullptr) madvise(data, bytes, MADV_DONTNEED);
    }

    std::unique_ptr<apart_endpoint> subset(std::span<const int> ranks, int context) const {
        int me = 0;
        while (ranks[std::size_t(me)] != rank()) ++me;
        return std::make_unique<apart_endpoint>(memory_->child(memory_->hub->child(context, ranks)),
                                                me);
    }

private:
    std::shared_ptr<reachable_memory> memory_;
    hvd::detail::shm_region region_;
    std::vector<std::pair<std::byte*, std::size_t>> parts_;  // those of this rank, by call
};

struct apart {
    using endpoint_type = apart_endpoint;
};
static_assert(hvd::backend<apart>);
static_assert(hvd::splittable_endpoint<apart_endpoint>);

// hvd::run_threads, for this backend.
template <class F>
void run_apart(int ranks, F f, const hvd::communicator_options& options) {
    using namespace hvd::detail;
    const auto memory = memory_of(ranks, options);
    first_failure failure;
    const auto body = [&](int rank) {
        try {
            hvd::communicator<apart> comm(std::make_unique<apart_endpoint>(memory, rank), options);
            f(comm);
        } catch (...) {
            failure.offer(rank, std::current_exception());
            memory->hub->region().leave(rank, reason_of(std::current_exception()));
        }
    };
    {
        std::vector<std::jthread> threads;
        for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
    }
    failure.rethrow();
}

}  // namespace hvd_test
