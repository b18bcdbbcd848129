// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "result_types.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// allgather and gather: every rank gives a tensor, of any first extent. `Result` is where it goes:
// gathered<T>* or given_memory.
template <class In, class Result>
struct gather_call : call {
    using T = typename In::value_type;
    packed_tensor input;
    Result result;

    gather_call(collective kind, const In& in, Result to, root r, bool receives, int size,
                const options& o)
        : result(to) {
        describe(kind, o.name);
        describe(in);
        if (kind == collective::gather) check_root(r.rank, size);
        op.in = bytes_of(in);
        if constexpr (is_strided<In>) {
            input.tensor = erase(in);
            op.buffer_bytes = in.size() * sizeof(T);
            op.in = nullptr;
            op.pack = [](void* self, operation& op) {
                packed_tensor::pack_into_buffer(&static_cast<gather_call*>(self)->input, op);
            };
        }
        op.self = this;
        if (receives)
            op.provide = [](void* self, std::span<const std::size_t> counts) {
                return detail::provide(*static_cast<gather_call*>(self)->result, counts);
            };
    }
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
