// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>
#include <vector>

#include "../fusion/codec.hpp"
#include "call/calls_base.hpp"

namespace hvd::inline v0::detail {

// Reduces a fused list in place whose elements travel in a codec's type. They are packed and scaled
// in one pass, and back. Other elements are packed as they are, and scaled in the reduction.
template <class Fused, class Op, class Codec>
struct coded_allreduce_call : call {
    Op function;

    coded_allreduce_call(const Fused& list, const Op& f, const reduce_options& o)
        : call(collective::allreduce, o.name),
          function(f),
          prescale_(o.prescale),
          postscale_(o.postscale) {
        this->check_list(list);
        describe_operation(op, function, o.prescale, o.postscale);
        hash content;
        content.add(std::uint64_t(Codec::keeps_residual));
        std::size_t bytes = 0, type = 0;
        [&]<class... T>(type_list<T...>) {
            (place<T>(list, type++, bytes, content), ...);
        }(fused_types_t<Fused>{});
        if constexpr (Codec::keeps_residual)
            if (!op.entry.refused) residuals_.resize(coded_elements_);
        op.groups = groups_.data();
        op.group_count = groups_.size();
        op.entry.fused = true;
        op.entry.count = op.buffer_bytes = bytes;
        op.entry.content = content.value();
        op.inputs = {tensors_.data(), tensors_.size()};
        op.self = this;
        op.packs_again = !Codec::keeps_residual;
        op.pack = [](void* self, operation& current) {
            static_cast<coded_allreduce_call*>(self)->encode(const_cast<std::byte*>(current.in));
        };
        op.unpack = [](void* self, operation& current) {
            static_cast<coded_allreduce_call*>(self)->decode(current.out);
        };
    }

private:
    // The place of a tensor in the buffer.
    struct piece {
        std::size_t offset;
        bool coded;
    };
    using coded_type = typename Codec::template type_of<float>;

    template <class T>
    void place(const Fused& list, std::size_t type, std::size_t& bytes, hash& content) {
        using W = typename Codec::template type_of<T>;
        constexpr bool coded = !std::is_same_v<T, W>;
        static_assert(!coded || std::is_same_v<T, float>, "hvd: a codec changes floats only");
        bytes = aligned(bytes);
        const std::size_t offset = bytes;
        std::uint32_t number = 0;
        list.for_each([&](const auto& view) {
            if constexpr (std::is_same_v<typename std::remove_cvref_t<decltype(view)>::value_type,
                                         T>) {
                tensor_ref& tensor = tensors_.emplace_back(erase(view));
                tensor.number = number;
                if (coded && !tensor.dense)
                    this->refuse(text("hvd: ", this->op.entry.label(), ": tensor ", number,
                                      " has gaps: codecs take tensors without"));
                content.add(tensor).add(std::uint64_t(dtype_traits<W>::id));
                pieces_.push_back({bytes, coded});
                bytes += tensor.count * sizeof(W);
                if (coded) coded_elements_ += tensor.count;
            }
            ++number;
        });
        groups_[type] = group_of<W>(op, function, offset, (bytes - offset) / sizeof(W));
        groups_[type].is_scaled = coded;
    }

    void encode(std::byte* buffer) {
        float* residual = residuals_.data();
        for (std::size_t i = 0; i < pieces_.size(); ++i) {
            const piece& p = pieces_[i];
            const tensor_ref& tensor = tensors_[i];
            if (!p.coded) {
                pack(tensor, buffer + p.offset);
                continue;
            }
            const float* const from = reinterpret_cast<const float*>(tensor.data);
            coded_type* const to = reinterpret_cast<coded_type*>(buffer + p.offset);
            if constexpr (Codec::keeps_residual)
                Codec::encode(from, tensor.count, to, prescale_, residual);
            else Codec::encode(from, tensor.count, to, prescale_);
            if constexpr (Codec::keeps_residual) residual += tensor.count;
        }
    }

    void decode(const std::byte* buffer) const {
        for (std::size_t i = 0; i < pieces_.size(); ++i) {
            const piece& p = pieces_[i];
            const tensor_ref& tensor = tensors_[i];
            if (p.coded)
                Codec::decode(reinterpret_cast<const coded_type*>(buffer + p.offset), tensor.count,
                              reinterpret_cast<float*>(tensor.data), postscale_);
            else unpack(tensor, buffer + p.offset);
        }
    }

    double prescale_, postscale_;
    std::vector<tensor_ref> tensors_;
    std::vector<piece> pieces_;     // of the tensors
    std::vector<float> residuals_;  // residuals of the coded elements, in their order
    std::size_t coded_elements_ = 0;
    std::array<reduction_group, fused_types_t<Fused>::size> groups_;
};

}  // namespace hvd::inline v0::detail
