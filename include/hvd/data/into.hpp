// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <memory_resource>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

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

    batches_in_memory(Before before, std::pmr::memory_resource& memory)
        : before_(std::move(before)), memory_(&memory), number_(++plan().stages) {}

    const batch_plan& plan() const { return before_.plan(); }
    batch_plan& plan() { return before_.plan(); }
    part mine() const
        requires hvd::detail::remote_pipeline<Before>
    {
        return before_.mine();
    }
    void begin(const batch_request& first, std::uint64_t steps) const
        requires hvd::detail::remote_pipeline<Before>
    {
        before_.begin(first, steps);
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
    int number_;
};

}  // namespace hvd::inline v0::data

namespace hvd::inline v0::detail {

template <class Before>
constexpr bool is_placed<data::batches_in_memory<Before>> = true;

// The result of data::into.
struct into_step {
    std::pmr::memory_resource* memory;
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
/// that of an arena names the sizes.
/// @snippet tests/data/snippets.cpp into
inline hvd::detail::into_step into(std::pmr::memory_resource& memory) { return {&memory}; }

template <batch_pipeline Before>
auto operator|(Before before, hvd::detail::into_step step) {
    constexpr bool is_right = hvd::detail::can_be_placed<typename Before::batch_type>;
    static_assert(is_right,
                  "hvd: data::into places vectors of numbers and texts, data::rows, "
                  "data::ragged_rows, and tuples and pairs of these: make batches of them");
    if constexpr (is_right) return batches_in_memory<Before>(std::move(before), *step.memory);
}

}  // namespace hvd::inline v0::data
