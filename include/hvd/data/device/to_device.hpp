// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../protocol/agreement.hpp"
#include "../batch.hpp"
#include "parts.hpp"
#include "slots.hpp"

namespace hvd::inline v0::data {

/// A batch in the memory of a GPU: the result of a stage `data::map(data::to_device())`.
///
/// It can be moved, and not copied. When it ends, its memory serves a later batch, which comes
/// behind all that the streams of `on` have been given until then.
template <class Batch, class... Views>
class device_batch {
public:
    device_batch(device_batch&& other) noexcept = default;
    device_batch& operator=(device_batch&& other) noexcept {
        std::swap(slots_, other.slots_);
        std::swap(slot_, other.slot_);
        std::swap(batch_, other.batch_);
        std::swap(views_, other.views_);
        std::swap(readers_, other.readers_);
        return *this;
    }
    ~device_batch() {
        if (!slot_) return;
        try {
            slots_->give_back(std::move(slot_), readers_);
        } catch (...) {  // the slot's memory is freed instead, which waits for the device
        }
    }

    /// Returns the tensors of the batch in device memory: a `tensor_view`, or a tuple of them if
    /// the batch has several parts. They may be overwritten.
    ///
    /// Later work of `stream` comes behind the copy; the host does not wait. Call it for each
    /// stream that reads the batch. The views are valid as long as the batch, and the streams live
    /// as long.
    /// @throws hvd::usage_error for a stream that is being captured: a graph would read the memory
    /// of this batch again and again.
    auto on(device_stream stream) {
        if (!stream.given()) stream = device_stream(cudaStreamLegacy);
        const hvd::detail::current_device here(slots_->device(), no_rank);
        if (hvd::detail::is_capturing(stream.get(), no_rank))
            hvd::detail::refuse(no_rank,
                                "device_batch::on a stream that is being captured: a graph would "
                                "read the memory of one batch each time. Copy it to memory of "
                                "your own before");
        slot_->copied().make_wait(stream.get(), no_rank);
        const auto is_it = [&](const device_stream& s) { return s.get() == stream.get(); };
        if (std::none_of(readers_.begin(), readers_.end(), is_it)) readers_.push_back(stream);
        if constexpr (sizeof...(Views) == 1) return std::get<0>(views_);
        else return views_;
    }

    /// The batch on the host, from which it was copied.
    const Batch& on_host() const { return batch_; }

private:
    template <class Parts>
    friend class to_device;
    static constexpr int no_rank = hvd::detail::device_slot::no_rank;

    device_batch(std::shared_ptr<hvd::detail::device_slots> slots,
                 std::unique_ptr<hvd::detail::device_slot> slot, Batch batch,
                 std::tuple<Views...> views)
        : slots_(std::move(slots)),
          slot_(std::move(slot)),
          batch_(std::move(batch)),
          views_(views) {}

    std::shared_ptr<hvd::detail::device_slots> slots_;
    std::unique_ptr<hvd::detail::device_slot> slot_;
    Batch batch_;
    std::tuple<Views...> views_;
    std::vector<device_stream> readers_;
};

/// A function for `data::map` after `data::batch`: it copies batches to the GPU that was current
/// when it was made.
///
/// Each batch goes through pinned memory and a stream of its own, in the threads of the loader,
/// `data::prefetch` of them before they are used. Memory for so many batches is kept, and grows
/// with them. `parts(batch)` returns the parts to be copied: a tensor, a vector or a span of
/// elements as collectives take them, or a `std::tuple` of such. Without it, it is
/// `data::default_parts`. Parts begin at multiples of 256 bytes.
///
/// Errors of CUDA arrive as `data::stage_error`, as all of a stage. The same pipeline without this
/// stage is for the host; before `data::send_to_data_service` it does not work, since batches would
/// travel as addresses.
/// @throws hvd::cuda_error if there is no GPU.
/// @snippet tests/device/snippets.cpp to_device
template <class Parts = default_parts>
class to_device {
public:
    explicit to_device(Parts parts = {})
        : parts_(std::move(parts)), slots_(std::make_shared<hvd::detail::device_slots>()) {}

    template <class Batch>
    auto operator()(Batch batch) const {
        const auto& parts = parts_(std::as_const(batch));
        return std::apply([&](const auto&... part) { return copy(std::move(batch), part...); },
                          hvd::detail::views_of_parts(parts));
    }

private:
    static constexpr std::size_t alignment = 256;  // as that of an allocation

    template <class Batch, class... T, std::size_t... Rank>
    auto copy(Batch&& batch, const tensor_view<T, host, Rank>&... part) const {
        constexpr int no_rank = hvd::detail::device_slot::no_rank;
        const hvd::detail::current_device here(slots_->device(), no_rank);
        const std::size_t bytes = (padded(part.size() * sizeof(T)) + ... + 0);
        auto slot = slots_->take();
        slot->prepare(bytes);
        std::size_t at = 0;
        const auto place = [&]<class U, std::size_t N>(const tensor_view<U, host, N>& from) {
            const std::size_t size = from.size() * sizeof(U);
            const std::size_t offset = std::exchange(at, at + padded(size));
            if (size > 0) std::memcpy(slot->pinned() + offset, from.data(), size);
            void* const to = slot->on_device() + offset;
            return device_view(static_cast<std::remove_const_t<U>*>(to), from.shape());
        };
        const std::tuple views{place(part)...};  // braces: from the first to the last
        slot->copy(bytes, slots_->stream());
        return device_batch<std::remove_cvref_t<Batch>,
                            tensor_view<std::remove_const_t<T>, device, Rank>...>(
            slots_, std::move(slot), std::move(batch), views);
    }

    static std::size_t padded(std::size_t bytes) {
        return (bytes + alignment - 1) / alignment * alignment;
    }

    Parts parts_;
    std::shared_ptr<hvd::detail::device_slots> slots_;
};

template <batch_pipeline Before, class Parts>
auto operator|(Before before, map_step<to_device<Parts>> step) {
    using batch_type = typename Before::batch_type;
    constexpr bool has_parts = std::invocable<const Parts&, const batch_type&>;
    static_assert(has_parts,
                  "hvd: data::to_device finds no numbers in such a batch: give it a function that "
                  "takes the batch and returns its parts");
    if constexpr (has_parts) {
        using parts = std::invoke_result_t<const Parts&, const batch_type&>;
        constexpr bool are_tensors =
            hvd::detail::is_batch_part<const std::remove_reference_t<parts>>;
        static_assert(are_tensors,
                      "hvd: the function of data::to_device returns a tensor, vector or span of "
                      "the host, in one piece, or a std::tuple of them");
        if constexpr (are_tensors)
            return mapped_batches<Before, to_device<Parts>>(std::move(before), std::move(step.f));
        else return before;
    } else {
        return before;
    }
}

}  // namespace hvd::inline v0::data
