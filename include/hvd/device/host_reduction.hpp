// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../comm/communicator.hpp"
#include "call.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

struct host_reduction {
    void* communicator;  // of the host backend that the function was made for
    collective kind;     // allreduce or reduce
    std::byte* data;     // in place
    std::size_t count;
    int root;
    const void* function;
    reduce_options options;
};

// What a session of device tensors calls without knowing the types.
template <class Host, class T, class Op>
void reduce_typed(const host_reduction& r) {
    auto& comm = *static_cast<communicator<Host>*>(r.communicator);
    const Op& op = *static_cast<const Op*>(r.function);
    const tensor_view<T> x(reinterpret_cast<T*>(r.data), {r.count});
    if (r.kind == collective::allreduce) comm.allreduce(x, op, r.options);
    else comm.reduce(x, op, root{r.root}, r.options);
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
