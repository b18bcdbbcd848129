// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <span>
#include <string>
#include <vector>

#include "../../collective/call/call.hpp"
#include "elements.hpp"
#include "options.hpp"

namespace hvd::inline v0::detail {

// The gradients of a bucket, with their names, for those who look at them before they travel.
struct bucket_inputs : input_names {
    bool checks_finite;                 // also where the communicator does not
    std::vector<tensor_ref> gradients;  // their numbers are places in `names`
    std::vector<std::string> names;

    explicit bucket_inputs(bool checks) : checks_finite(checks) {
        name = [](const input_names& self, std::size_t number) {
            return text("gradient '", static_cast<const bucket_inputs&>(self).names[number], "'");
        };
    }
    void add(const flat_tensor& gradient, const std::string& called) {
        gradients.push_back(gradient.ref());
        gradients.back().number = std::uint32_t(names.size());
        names.push_back(called);
    }
};

// The allreduce of a fused list, for tensors of one type that only their element_kind knows. It is
// in place, and owns its storage.
struct flat_allreduce : fused_storage, call {
    // `inputs` outlives the call. Without it tensors have numbers.
    [[gnu::cold]] flat_allreduce(std::span<const flat_tensor> list, gradient_op how,
                                 const reduce_options& o, const bucket_inputs* inputs = nullptr)
        : call(collective::allreduce, o.name), buffer_{tensors, offsets} {
        const element_kind& kind = list.front().kind();
        std::size_t count = 0;
        for (const flat_tensor& t : list) {
            if (t.data() == nullptr && t.size() > 0)
                refuse_null(tensors.size(), t.size(), "fuse()");
            const auto number = std::uint32_t(tensors.size());
            tensors.push_back(t.ref());
            tensors.back().number = number;
            offsets.push_back(count * kind.bytes);
            count += t.size();
        }
        if (how == hvd::average) describe_operation(op, mean_, o.prescale, o.postscale);
        else describe_operation(op, sum_, o.prescale, o.postscale);
        group_ = {how == hvd::average ? kind.average : kind.sum,
                  op.callable,
                  kind.bytes,
                  0,
                  count,
                  nullptr,
                  kind.id,
                  false};
        op.groups = &group_;
        op.group_count = 1;
        op.entry.fused = true;
        op.entry.count = group_.bytes();
        op.entry.content = buffer_.content();
        op.inputs = tensors;
        if (inputs != nullptr) {
            op.checks_finite = inputs->checks_finite;
            op.inputs = inputs->gradients;
            op.names = inputs;
        }
        place();
    }

private:
    // A single tensor is reduced where it is.
    void place() {
        if (!buffer_.needs_packing()) {
            op.in = op.out = tensors.front().data;
            return;
        }
        op.tensors = tensors.data();
        op.offsets = offsets.data();
        op.tensor_count = tensors.size();
        op.buffer_bytes = group_.bytes();
        op.self = &buffer_;
        op.pack = &fused_buffer::pack_all;
        op.unpack = &fused_buffer::unpack_all;
    }

    op::sum sum_;
    op::average mean_;
    reduction_group group_;
    fused_buffer buffer_;
};

}  // namespace hvd::inline v0::detail
