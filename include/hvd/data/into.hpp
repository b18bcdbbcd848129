// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <memory_resource>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../comm/arena_life.hpp"
#include "../platform/thread.hpp"
#include "../protocol/agreement.hpp"
#include "batch.hpp"
#include "collate.hpp"

namespace hvd::inline v0::detail {

// The type of a part of a batch in memory of the user, and the copy into it. There is one for
// numbers, texts, vectors, the batches of data::default_collate and data::concatenate, and tuples
// of these.
template <class T>
struct part_in_memory;

template <class T>
using in_memory = typename part_in_memory<T>::type;

template <class T>
concept has_part_in_memory = requires { typename part_in_memory<T>::type; };

template <class T>
    requires std::is_trivially_copyable_v<T>
struct part_in_memory<T> {
    using type = T;
    static const T& copy(const T& value, std::pmr::memory_resource*) { return value; }
};

template <>
struct part_in_memory<std::string> {
    using type = std::pmr::string;
    static type copy(const std::string& value, std::pmr::memory_resource* memory) {
        return type(value, memory);
    }
};

template <has_part_in_memory T>
struct part_in_memory<std::vector<T>> {
    using type = std::pmr::vector<in_memory<T>>;
    static type copy(const std::vector<T>& value, std::pmr::memory_resource* memory) {
        if constexpr (std::is_trivially_copyable_v<T>) {
            return type(value.begin(), value.end(), memory);
        } else {
            type placed(memory);
            placed.reserve(value.size());
            for (const T& each : value)
                placed.push_back(part_in_memory<T>::copy(each, memory));  // it moves into there
            return placed;
        }
    }
};

template <class T>
struct part_in_memory<data::rows<T>> {
    using type = data::rows<T, std::pmr::polymorphic_allocator<T>>;
    static type copy(const data::rows<T>& value, std::pmr::memory_resource* memory) {
        return {part_in_memory<std::vector<T>>::copy(value.values, memory), value.width};
    }
};

template <class T>
struct part_in_memory<data::ragged_rows<T>> {
    using type = data::ragged_rows<T, std::pmr::polymorphic_allocator<T>>;
    static type copy(const data::ragged_rows<T>& value, std::pmr::memory_resource* memory) {
        return {part_in_memory<std::vector<T>>::copy(value.values, memory),
                part_in_memory<std::vector<std::size_t>>::copy(value.offsets, memory)};
    }
};

template <has_part_in_memory... T>
    requires(!std::is_trivially_copyable_v<std::tuple<T...>>)
struct part_in_memory<std::tuple<T...>> {
    using type = std::tuple<in_memory<T>...>;
    static type copy(const std::tuple<T...>& value, std::pmr::memory_resource* memory) {
        const auto each = [memory](const T&... part) {
            return type{part_in_memory<T>::copy(part, memory)...};
        };
        return std::apply(each, value);
    }
};

template <has_part_in_memory A, has_part_in_memory B>
    requires(!std::is_trivially_copyable_v<std::pair<A, B>>)
struct part_in_memory<std::pair<A, B>> {
    using type = std::pair<in_memory<A>, in_memory<B>>;
    static type copy(const std::pair<A, B>& value, std::pmr::memory_resource* memory) {
        return {part_in_memory<A>::copy(value.first, memory),
                part_in_memory<B>::copy(value.second, memory)};
    }
};

// A number alone lies in no memory of the user.
template <class T>
concept can_be_placed = has_part_in_memory<T> && !std::is_trivially_copyable_v<T>;

// The memory of an arena, for batches that may outlive it: it lives as long as they and the
// pipelines. The bytes of a batch that does end with the arena.
class batch_memory final : public std::pmr::memory_resource,
                           public std::enable_shared_from_this<batch_memory> {
public:
    batch_memory(std::pmr::memory_resource& arena, const arena_life& life)
        : arena_(arena), life_(life) {}

private:
    void* do_allocate(std::size_t bytes, std::size_t align) override {
        void* memory = nullptr;
        if (!life_.during([&] { memory = arena_.allocate(bytes, align); }))
            refuse(-1,
                   "the arena of data::into has ended, and its loader goes on: an arena outlives "
                   "the loader and all batches, so make it before the loader");
        const lock_guard held(mutex_);
        if (allocations_++ == 0) self_ = shared_from_this();
        return memory;
    }
    void do_deallocate(void* memory, std::size_t bytes, std::size_t align) override {
        life_.during([&] { arena_.deallocate(memory, bytes, align); });
        std::shared_ptr<batch_memory> last;  // ends behind the lock
        const lock_guard held(mutex_);
        if (--allocations_ == 0) last = std::move(self_);
    }
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
        return this == &other;
    }

    std::pmr::memory_resource& arena_;
    arena_life life_;
    mutex mutex_;  // of what follows
    std::size_t allocations_ = 0;
    std::shared_ptr<batch_memory> self_;  // while there are some
};

// True for the pipelines of data::into.
template <class P>
constexpr bool is_placed = false;

}  // namespace hvd::inline v0::detail

namespace hvd::inline v0::data {

/// A pipeline whose batches lie in memory of the user: see `data::into`.
template <batch_pipeline Before>
class batches_in_memory {
public:
    using batch_type = hvd::detail::in_memory<typename Before::batch_type>;

    batches_in_memory(Before before, std::pmr::memory_resource& memory,
                      std::shared_ptr<hvd::detail::batch_memory> held = nullptr)
        : before_(std::move(before)),
          memory_(&memory),
          held_(std::move(held)),
          number_(++plan().stages) {}

    const batch_plan& plan() const { return before_.plan(); }
    batch_plan& plan() { return before_.plan(); }
    part mine() const
        requires hvd::detail::remote_pipeline<Before>
    {
        return before_.mine();
    }
    auto begin(const batch_request& first, std::uint64_t steps) const
        requires hvd::detail::remote_pipeline<Before>
    {
        return before_.begin(first, steps);
    }

    std::vector<stage_statistics> stages() const
        requires hvd::detail::has_stages<Before>
    {
        return before_.stages();
    }

    made_batch<batch_type> make(const batch_request& request) const {
        // Errors of the stages before it name these.
        const auto as_this_stage = [&](const auto& place) {
            try {
                return place();
            } catch (...) {
                sample_context context(request.seed, request.epoch);
                context.begin(plan().first_sample(request));
                context.enter(number_, "into");
                context.fail(request.mine.rank, std::current_exception());
            }
        };
        if constexpr (requires { before_.make_in(request, memory_, as_this_stage); }) {
            return before_.make_in(request, memory_, as_this_stage);  // out of the bytes that came
        } else {
            auto made = before_.make(request);
            return {as_this_stage([&] { return placed(made.batch); }), made.skipped,
                    std::move(made.last_failure)};
        }
    }

private:
    batch_type placed(const typename Before::batch_type& batch) const {
        return hvd::detail::part_in_memory<typename Before::batch_type>::copy(batch, memory_);
    }

    Before before_;
    std::pmr::memory_resource* memory_;
    std::shared_ptr<hvd::detail::batch_memory> held_;  // where that is the memory of an arena
    int number_;
};

}  // namespace hvd::inline v0::data

namespace hvd::inline v0::detail {

template <class Before>
constexpr bool is_placed<data::batches_in_memory<Before>> = true;

// The result of data::into.
struct into_step {
    std::pmr::memory_resource* memory;
    std::shared_ptr<batch_memory> held = nullptr;
};

}  // namespace hvd::inline v0::detail

namespace hvd::inline v0::data {

/// Lets batches lie in memory of yours, as a `hvd::arena`, where collectives reduce them without a
/// copy.
///
/// It stands behind `data::batch`, and with a data service behind `data::send_to_data_service`. A
/// `std::vector` becomes a `std::pmr::vector`, and `data::rows`, `data::ragged_rows`, texts, pairs
/// and tuples have such ones. Batches of a data service are copied once, from the shared memory or
/// the bytes of the connection; others once from where they were made.
///
/// **Buffers**: a batch frees its memory when it ends. The memory outlives the loader and all
/// batches. It has room for the batches in use, and for those that the loader makes ahead:
/// `data::prefetch` of them, and of a data service at most one more than the loader's threads.
/// **Threads**: the loader's threads allocate, and the threads that end batches free. An
/// `hvd::arena` takes that, and `std::pmr::synchronized_pool_resource`.
///
/// Without room the loader throws a `data::stage_error` with the text of the memory's exception:
/// that of an arena names the sizes. So does one whose arena has ended, and a batch that outlives
/// its arena is freed without harm. Whoever reads it crashes.
/// @snippet tests/data/snippets.cpp into
template <std::derived_from<std::pmr::memory_resource> Memory>
hvd::detail::into_step into(Memory& memory) {
    if constexpr (requires { hvd::detail::arena_access::life_of(memory); }) {
        auto held = std::make_shared<hvd::detail::batch_memory>(
            memory, hvd::detail::arena_access::life_of(memory));
        return {held.get(), held};
    } else {
        return {&memory};
    }
}

template <batch_pipeline Before>
auto operator|(Before before, hvd::detail::into_step step) {
    constexpr bool is_right = hvd::detail::can_be_placed<typename Before::batch_type>;
    static_assert(is_right,
                  "hvd: data::into places vectors of numbers and texts, data::rows, "
                  "data::ragged_rows, and tuples and pairs of these: make batches of them");
    if constexpr (is_right)
        return batches_in_memory<Before>(std::move(before), *step.memory, std::move(step.held));
}

}  // namespace hvd::inline v0::data
