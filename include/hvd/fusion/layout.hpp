// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include "../core/tuning.hpp"
#include "../kernel/pack.hpp"
#include "fuse.hpp"

namespace hvd::inline v0::detail {

// The places of a fused list's tensors in one buffer. They are grouped by element type. Each group
// is aligned to a cache line and has no gaps, so that a group is one tensor.
struct fused_layout {
    std::vector<tensor_ref>& tensors;
    std::vector<std::size_t>& offsets;
    std::size_t bytes = 0;

    static constexpr std::size_t alignment = tuning::cache_line;
};

// One element type of a fused list: the begin of its group and its number of elements.
struct fused_group {
    std::size_t offset = 0;
    std::size_t count = 0;
};

template <class T, class Fused>
fused_group lay_out_type(const Fused& list, fused_layout& layout) {
    std::size_t next = (layout.bytes + fused_layout::alignment - 1) / fused_layout::alignment *
                       fused_layout::alignment;
    fused_group group{next, 0};
    std::uint32_t number = 0;
    list.for_each([&](const auto& view) {
        if constexpr (std::is_same_v<typename std::remove_cvref_t<decltype(view)>::value_type, T>) {
            layout.tensors.push_back(erase(view));
            layout.tensors.back().number = number;
            layout.offsets.push_back(next);
            next += layout.tensors.back().bytes();
            group.count += layout.tensors.back().count;
        }
        ++number;
    });
    // An empty group has no gap before it: the buffer may be the memory of one tensor.
    if (group.count > 0) layout.bytes = next;
    else group.offset = layout.bytes;
    return group;
}

// Fills the layout and returns each type's group, in the order of fused_types_t.
template <class Fused>
auto lay_out(const Fused& list, fused_layout& layout) {
    layout.tensors.clear();
    layout.offsets.clear();
    return [&]<class... T>(type_list<T...>) {
        return std::array<fused_group, sizeof...(T)>{lay_out_type<T>(list, layout)...};
    }(fused_types_t<Fused>{});
}

}  // namespace hvd::inline v0::detail
