// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../protocol/comparison.hpp"
#include "call.hpp"
#include "result_types.hpp"

namespace hvd::inline v0::detail {

// The caller's counts until they have been checked: integers of any type, or none.
class given_counts {
public:
    struct one {
        std::uint64_t value;  // a negative value is kept as std::int64_t
        bool negative;
    };

    given_counts() = default;
    template <class Counts>
    explicit given_counts(const Counts& counts)
        : first_(std::data(counts)), size_(std::size(counts)) {
        using T = std::remove_cvref_t<decltype(*std::data(counts))>;
        static_assert(std::is_integral_v<T>,
                      "hvd: counts are integers; a result goes to hvd::into(out)");
        at_ = [](const void* first, std::size_t i) -> one {
            const T count = static_cast<const T*>(first)[i];
            if constexpr (std::is_signed_v<T>)
                return {static_cast<std::uint64_t>(count), count < 0};
            else return {count, false};
        };
    }

    explicit operator bool() const { return at_ != nullptr; }
    std::size_t size() const { return size_; }
    one operator[](std::size_t i) const { return at_(first_, i); }

private:
    const void* first_ = nullptr;
    std::size_t size_ = 0;
    one (*at_)(const void*, std::size_t) = nullptr;
};

// Integers, one for each rank.
template <class X>
concept counts_like =
    is_range<const std::remove_cvref_t<X>> &&
    std::is_integral_v<std::remove_cvref_t<decltype(*std::data(std::declval<const X&>()))>>;

// The split of a tensor among the ranks.
struct distribution : call {
    lent_sizes counts;

    // `lender` has the memory for counts; a queued call has none.
    distribution(collective kind, std::string_view name, workspace* lender)
        : call(kind, name), counts(lender) {}

    // Gives each rank as many rows. Rows that do not divide are refused, as Horovod does.
    void split_equally(std::size_t rows, std::size_t total, int size) {
        if (rows % std::size_t(size) != 0) return refuse_rows(rows, size);
        counts.resize(std::size_t(size));
        for (std::size_t& count : counts) count = total / std::size_t(size);
        op.counts = counts;
    }

    // Counts are elements; their sum is the whole tensor.
    void split_by(const given_counts& given, std::size_t total, int size) {
        if (given.size() != std::size_t(size)) return refuse_number(given.size(), size);
        for (std::size_t r = 0; r < given.size(); ++r)
            if (given[r].negative) return refuse_count(given[r], r, total);
        counts.resize(std::size_t(size));
        std::size_t sum = 0;
        for (std::size_t r = 0; r < counts.size(); ++r) {
            counts[r] = std::size_t(given[r].value);
            if (counts[r] > ~std::size_t(0) - sum) return refuse_largest(given, total);
            sum += counts[r];
        }
        if (sum != total) return refuse_sum(sum, total);
        op.counts = counts;
    }

    // For a call whose counts are equal on all ranks. The text is printed where they differ.
    void agree_on_counts() {
        if (op.entry.refused) return;
        hash content;
        for (const std::size_t count : counts) content.add(count);
        op.entry.content = content.value();
        store(op.entry.text, text("counts ", print_list(slice<const std::size_t>(counts))));
    }

    // Turns the counts into the beginnings of the ranks' slices, and the end of the last. Those of
    // a call that is refused are 0.
    const std::size_t* bounds_of_counts(int size) {
        op.counts = {};
        if (op.entry.refused) counts.clear();
        counts.resize(std::size_t(size) + 1);
        std::size_t begin = 0;
        for (std::size_t& count : counts) begin += std::exchange(count, begin);
        return counts.data();
    }

private:
    [[gnu::cold, gnu::noinline]] void refuse_rows(std::size_t rows, int size) {
        refuse(text("hvd: ", op.entry.label(), ": ", rows, " rows can't be split equally among ",
                    size, " ranks; give counts"));
    }
    [[gnu::cold, gnu::noinline]] void refuse_number(std::size_t given, int size) {
        refuse(text("hvd: ", op.entry.label(), ": ", given, " counts for ", size, " ranks"));
    }
    [[gnu::cold, gnu::noinline]] void refuse_count(const given_counts::one& count, std::size_t rank,
                                                   std::size_t total) {
        const message value =
            count.negative ? text(static_cast<std::int64_t>(count.value)) : text(count.value);
        refuse(text("hvd: ", op.entry.label(), ": a count of ", value, " for rank ", rank,
                    ", and the tensor has ", total, " elements"));
    }
    // Refuses counts whose sum would wrap around.
    [[gnu::cold, gnu::noinline]] void refuse_largest(const given_counts& given, std::size_t total) {
        std::size_t largest = 0;
        for (std::size_t r = 1; r < given.size(); ++r)
            if (given[r].value > given[largest].value) largest = r;
        refuse_count(given[largest], largest, total);
    }
    [[gnu::cold, gnu::noinline]] void refuse_sum(std::size_t sum, std::size_t total) {
        refuse(text("hvd: ", op.entry.label(), ": counts add up to ", sum, ", the tensor has ",
                    total, " elements"));
    }
};

// alltoall and scatter split a tensor among the ranks, by counts or evenly.
template <class In, class Result>
struct distribute_call : distribution {
    using T = typename In::value_type;
    packed_tensor input;
    Result result;

    // `sends`: this rank's input is read.
    distribute_call(collective kind, const In& in, Result to, workspace* lender, const options& o,
                    bool sends = true)
        : distribution(kind, o.name, lender), result(to) {
        describe(in, sends);
        op.self = this;
        op.in = bytes_of(in);
        op.provide = [](void* self, slice<const std::size_t> by_rank) {
            distribute_call& made = *static_cast<distribute_call*>(self);
            return detail::provide(*made.result, by_rank, made.op.entry);
        };
        if constexpr (is_strided<In>)
            if (sends) send_copy(in);
    }

    // Sends the elements from a copy, without gaps.
    void send_copy(const In& in) {
        input.tensor = erase(in);
        op.buffer_bytes = in.size() * sizeof(T);
        op.in = nullptr;
        op.pack = [](void* self, operation& current) {
            packed_tensor::pack_into_buffer(&static_cast<distribute_call*>(self)->input, current);
        };
    }
};

}  // namespace hvd::inline v0::detail
