// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "result_types.hpp"

namespace hvd::inline v0::detail {

// allgather and gather: every rank contributes a tensor, of any first extent. `Result` is the type
// of the result's memory: gathered<T>* or given_memory.
template <class In, class Result>
struct gather_call : call {
    using T = typename In::value_type;
    packed_tensor input;
    Result result;

    gather_call(collective kind, const In& in, Result to, root r, bool receives, int size,
                const options& o)
        : call(kind, o.name), result(to) {
        describe(in);
        if (kind == collective::gather) check_root(r.rank, size);
        op.in = bytes_of(in);
        if constexpr (is_strided<In>) {
            input.tensor = erase(in);
            op.buffer_bytes = in.size() * sizeof(T);
            op.in = nullptr;
            op.pack = [](void* self, operation& current) {
                packed_tensor::pack_into_buffer(&static_cast<gather_call*>(self)->input, current);
            };
        }
        op.self = this;
        if (receives)
            op.provide = [](void* self, slice<const std::size_t> counts) {
                gather_call& made = *static_cast<gather_call*>(self);
                made.check_place(counts);
                return detail::provide(*made.result, counts, made.op.entry);
            };
    }

private:
    // Peers read the input while their elements arrive. So it may overlap the output only in the
    // part that receives this rank's elements.
    void check_place([[maybe_unused]] slice<const std::size_t> counts) const {
        if constexpr (std::is_same_v<Result, given_memory> && !is_strided<In>) {
            const std::byte *const in = op.in, *const out = result.data;
            const std::size_t bytes = std::size_t(op.entry.count) * sizeof(T);
            if (op.entry.kind != collective::allgather || bytes == 0 || in + bytes <= out ||
                in >= out + result.count * sizeof(T))
                return;
            std::size_t before = 0;
            for (int p = 0; p < result.rank; ++p) before += counts[std::size_t(p)];
            if (in == out + before * sizeof(T)) return;
            throw usage_error(
                result.rank,
                text("hvd: ", op.entry.label(), " on rank ", result.rank,
                     ": input and output overlap, but the input is not where this rank's elements "
                     "end up"));
        }
    }
};

}  // namespace hvd::inline v0::detail
