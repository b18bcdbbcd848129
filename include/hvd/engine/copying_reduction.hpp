// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <vector>

#include "../collective/allreduce.hpp"

namespace hvd::inline v0::detail {

// An allreduce of an engine from one tensor to another. The input is copied once the engine has
// taken the name, and the output is reduced in place, so that it travels with other tensors.
template <class Fused, class Op>
struct copying_reduction : kept_fused_allreduce<Fused, Op> {
    template <class In, class Out>
    copying_reduction(const Fused& list, const In& in, const Out& out, const Op& f,
                      const reduce_options& o)
        : kept_fused_allreduce<Fused, Op>(list, f, o), input_(bytes_of(in)) {
        if (in.data() == nullptr && in.size() > 0) this->refuse(flaw::null_pointer);
        this->check_size(out.size(), in.size());
        if constexpr (!is_strided<In> && !is_strided<Out>) {
            constexpr std::size_t each = sizeof(typename In::value_type);
            this->check_overlap(input_, bytes_of(out), in.size() * each, out.size() * each);
        } else if (!this->op.entry.refused) {
            const tensor_ref from = erase(in);
            packed_.resize(from.bytes());
            pack(from, packed_.data());
            input_ = packed_.data();
        }
    }

    void fill() {
        const tensor_ref& out = this->tensors.front();
        if (!out.dense || input_ != out.data) unpack(out, input_);
    }

private:
    const std::byte* input_;
    std::vector<std::byte> packed_;  // of strided tensors, which may overlap
};

}  // namespace hvd::inline v0::detail
