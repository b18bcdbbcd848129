// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "calls_base.hpp"
#include "result_types.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// alltoall and scatter: a tensor is split among the ranks, by counts or evenly.
template <class In, class Result>
struct distribute_call : call {
    using T = typename In::value_type;
    packed_tensor input;
    lent_sizes counts;
    Result result;

    // `lender` has the memory for counts; a queued call has none.
    distribute_call(collective kind, const In& in, Result to, workspace* lender, const options& o)
        : counts(lender), result(to) {
        describe(kind, o.name);
        describe(in);
        op.self = this;
        op.in = bytes_of(in);
        op.provide = [](void* self, std::span<const std::size_t> counts) {
            return detail::provide(*static_cast<distribute_call*>(self)->result, counts);
        };
        if constexpr (is_strided<In>) {
            input.tensor = erase(in);
            op.buffer_bytes = in.size() * sizeof(T);
            op.in = nullptr;
            op.pack = [](void* self, operation& op) {
                packed_tensor::pack_into_buffer(&static_cast<distribute_call*>(self)->input, op);
            };
        }
    }

    // As many rows for each rank; what does not divide is refused, as Horovod does (feature B9).
    void split_equally(const In& in, int size) {
        const std::size_t rows = In::rank() == 0 ? 1 : in.extent(0);
        if (rows % std::size_t(size) != 0) {
            refuse(text("hvd: ", op.entry.label(), ": ", rows, " rows can't be split equally among ", size, " ranks; give counts"));
            return;
        }
        counts.assign(std::size_t(size), in.size() / std::size_t(size));
        op.send_counts = counts;
    }

    // Counts are elements; their sum is the whole tensor.
    void split_by(std::span<const std::size_t> given, std::size_t total, int size) {
        std::size_t sum = 0;
        for (const std::size_t count : given) sum += count;
        if (given.size() != std::size_t(size))
            refuse(text("hvd: ", op.entry.label(), ": ", given.size(), " counts for ", size, " ranks"));
        else if (sum != total)
            refuse(text("hvd: ", op.entry.label(), ": counts add up to ", sum, ", the tensor has ", total, " elements"));
        else {
            counts.assign(given.begin(), given.end());
            op.send_counts = counts;
        }
    }
};

template <class In, class Result>
struct alltoall_call : distribute_call<In, Result> {
    alltoall_call(const In& in, std::span<const std::size_t> counts, bool equal, Result to, int size, workspace* lender, const options& o)
        : distribute_call<In, Result>(collective::alltoall, in, to, lender, o) {
        if (equal) this->split_equally(in, size);
        else this->split_by(counts, in.size(), size);
    }
};

template <class Comm, class B>
class alltoall_calls {
public:
    /// Sends `counts[r]` elements to each rank r, one rank's after another's, and gives what they sent.
    ///
    /// **Collective**: all ranks, in the same order of calls; every rank has its own counts, zeros
    /// included. **Buffers**: `in` is read; the result is new memory. Counts are elements and add up to
    /// the whole of `in`. @throws as `allreduce`. Feature B9.
    /// @snippet tests/docs/snippets.cpp alltoall
    template <class In, class Counts>
        requires is_range<const Counts>
    auto alltoall(const In& in, const Counts& counts, const options& o = {}) {
        return run_new(in, sizes(counts), false, o);
    }

    /// Sends every rank an equal share of `in`.
    template <class In>
    auto alltoall(const In& in, const options& o = {}) {
        return run_new(in, {}, true, o);
    }

    /// With counts, into the caller's memory, which has room for exactly what comes.
    template <class In, class Counts, class View>
        requires is_range<const Counts>
    void alltoall(const In& in, const Counts& counts, const into_view<View>& out, const options& o = {}) {
        run_into(in, sizes(counts), false, out, o);
    }

    /// Equal shares, into the caller's memory.
    template <class In, class View>
    void alltoall(const In& in, const into_view<View>& out, const options& o = {}) {
        run_into(in, {}, true, out, o);
    }

    /// With counts and new memory, begun: the result is complete when `wait()` gives it.
    template <class In, class Counts>
        requires is_range<const Counts>
    auto alltoall_async(In&& in, const Counts& counts, const options& o = {}) {
        return start_new(std::forward<In>(in), sizes(counts), false, o);
    }

    /// Equal shares and new memory, begun.
    template <class In>
    auto alltoall_async(In&& in, const options& o = {}) {
        return start_new(std::forward<In>(in), {}, true, o);
    }

private:
    Comm& self() { return static_cast<Comm&>(*this); }
    auto& own() { return access::session_of(self()); }

    // Counts may be any integers; a negative one becomes a size that nothing adds up to.
    template <class Counts>
    static auto sizes(const Counts& counts) {
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(*std::data(counts))>, std::size_t>)
            return std::span<const std::size_t>(std::data(counts), std::size(counts));
        else return std::vector<std::size_t>(std::data(counts), std::data(counts) + std::size(counts));
    }

    template <class In>
    auto run_new(const In& in, std::span<const std::size_t> counts, bool equal, const options& o) {
        if constexpr (check_tensor<B, const In&>()) {
            using T = element_of<const In&>;
            gathered<T> result;
            alltoall_call<view_of<const In&>, gathered<T>*> call(to_view(in), counts, equal, &result, own().size(), &own().work(), o);
            run_call(self(), call, o);
            return result;
        }
    }

    template <class In, class View>
    void run_into(const In& in, std::span<const std::size_t> counts, bool equal, const into_view<View>& out, const options& o) {
        if constexpr (check_tensor<B, const In&>()) {
            static_assert(std::is_same_v<element_of<const In&>, typename View::value_type>,
                          "hvd: input and output have different element types");
            const given_memory memory = memory_of(out, own().rank(), collective::alltoall);
            alltoall_call<view_of<const In&>, given_memory> call(to_view(in), counts, equal, memory, own().size(), &own().work(), o);
            call.check_overlap(bytes_of(to_view(in)), memory.data, call.op.entry.count * call.op.element_bytes,
                               memory.count * call.op.element_bytes);
            if (memory.data == bytes_of(to_view(in)) && memory.count > 0)
                call.refuse(text("hvd: ", call.op.entry.label(), ": input and output are the same memory"));
            run_call(self(), call, o);
        }
    }

    template <class In>
    auto start_new(In&& in, std::span<const std::size_t> counts, bool equal, const options& o) {
        if constexpr (check_kept<B, In>()) {
            using T = element_of<In>;
            auto value = shared<counted_value<gathered<T>>>::make();
            return result<gathered<T>>(start_call<alltoall_call<view_of<In>, shared<counted_value<gathered<T>>>>>(
                                           self(), o, to_view(in), counts, equal, value, own().size(), nullptr, o),
                                       value);
        }
    }
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
