// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include "../collective/call/call.hpp"
#include "../protocol/not_finite_input.hpp"

namespace hvd::inline v0::detail {

// Several allreduces as one, of elements of one type, by one operation. Its memory is kept for the
// next time.
class merged_reduction {
public:
    // True if the tensors of this call may travel with those of others.
    static bool takes(const operation& op) {
        return op.entry.kind == collective::allreduce && op.group_count == 1 && !op.fallible;
    }

    void clear() {
        tensors_.clear();
        offsets_.clear();
        inputs_.clear();
        names_.inputs.clear();
        bytes_ = 0;
    }

    // The call that was added is one whose input is looked at, under its name in the engine, which
    // outlives the unit.
    void check(const operation& call, std::string_view name) {
        const bool is_one = call.inputs.size() <= 1;
        const auto look_at = [&](const tensor_ref& t) {
            names_.inputs.push_back({name, call.names, t.number, is_one});
            inputs_.push_back(t);
            inputs_.back().number = std::uint32_t(names_.inputs.size() - 1);
        };
        for (const tensor_ref& t : call.inputs) look_at(t);
        if (call.inputs.empty()) look_at(whole_of(call.groups[0], call.out));
    }
    bool checks() const { return !inputs_.empty(); }

    // Adds the tensors of a call, an engine's: it is of a fused list, of one tensor perhaps.
    void add(const operation& call) {
        if (call.self == nullptr) return add(whole_of(call.groups[0], call.out));
        for (const tensor_ref& t : static_cast<const fused_buffer*>(call.self)->tensors) add(t);
    }

    // The operation, after all calls have been added. `first` is one of them and outlives it.
    // `content` says of which tensors it is, the same on all ranks. `alike`: all ranks have as many
    // tensors, so that they may be reduced where they lie.
    operation& finish(const operation& first, std::uint64_t content, double factor, bool alike) {
        group_ = first.groups[0];
        group_.offset = 0;
        group_.count = bytes_ / group_.element_bytes;
        op_ = operation{};
        op_.entry.kind = collective::allreduce;
        op_.entry.id = group_.id;
        op_.entry.op = first.entry.op;
        op_.entry.mode = first.entry.mode;
        store(op_.entry.type, first.entry.type);
        op_.entry.prescale = first.entry.prescale;
        op_.entry.postscale = first.entry.postscale * factor;
        op_.entry.fused = true;
        op_.entry.count = bytes_;
        op_.entry.content = content;
        op_.callable = first.callable;
        op_.inputs = inputs_;
        op_.names = &names_;
        op_.checks_finite = checks();
        op_.unchecked = !checks();
        op_.groups = &group_;
        op_.group_count = 1;
        if (!buffer_.needs_packing()) {
            op_.in = op_.out = tensors_.front().data;
            return op_;
        }
        if (alike && buffer_.is_dense()) {
            op_.tensors = tensors_.data();
            op_.offsets = offsets_.data();
            op_.tensor_count = tensors_.size();
        }
        op_.buffer_bytes = bytes_;
        op_.self = &buffer_;
        op_.pack = &fused_buffer::pack_all;
        op_.unpack = &fused_buffer::unpack_all;
        return op_;
    }

    // A hash of everything that all ranks know of a tensor.
    static std::uint64_t content_of(const call_header& c) {
        hash h;
        h.add(c.count).add(c.content).add(c.dimensions);
        for (std::size_t d = 0; d < c.dimensions; ++d) h.add(c.extents[d]);
        return h.value();
    }

private:
    static tensor_ref whole_of(const reduction_group& g, std::byte* data) {
        tensor_ref t{};
        t.data = data;
        t.count = g.count;
        t.element_bytes = g.element_bytes;
        t.id = g.id;
        t.dense = true;
        t.dimensions = 1;
        t.extents[0] = g.count;
        t.steps[0] = std::ptrdiff_t(g.element_bytes);
        return t;
    }

    // The names of the tensors that are looked at: "tensor 2 of 'w1'" where a name has several.
    struct input {
        std::string_view name;
        const input_names* names;
        std::uint32_t number;
        bool is_one;
    };
    struct names_of_inputs : input_names {
        std::vector<input> inputs;
        names_of_inputs() {
            name = [](const input_names& self, std::size_t number) {
                const input& i = static_cast<const names_of_inputs&>(self).inputs[number];
                if (i.names != nullptr) return i.names->name(*i.names, i.number);
                return i.is_one ? text("'", i.name, "'")
                                : text("tensor ", i.number, of_tensor, "'", i.name, "'");
            };
        }
    };

    void add(const tensor_ref& t) {
        tensors_.push_back(t);
        offsets_.push_back(bytes_);
        bytes_ += t.bytes();
    }

    std::vector<tensor_ref> tensors_;
    std::vector<std::size_t> offsets_;
    std::size_t bytes_ = 0;
    std::vector<tensor_ref> inputs_;
    names_of_inputs names_;
    fused_buffer buffer_{tensors_, offsets_};
    reduction_group group_{};
    operation op_{};
};

}  // namespace hvd::inline v0::detail
