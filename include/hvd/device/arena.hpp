// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../comm/communicator.hpp"
#include "../core/tuning.hpp"
#include "arguments.hpp"

namespace hvd {
inline namespace v0 {

/// Device memory that all ranks know beforehand: of `nccl` in a symmetric window (ncclMemAlloc), of
/// `cuda_ipc` mapped by every rank. Plans leave its tensors where they are, and make those that lie
/// side by side one call; `cuda_ipc` reads and writes them without a copy in single calls, too.
///
/// **Collective**: made by all ranks with the same size, and all ask for the same tensors in the
/// same order. It ends on all ranks at about the same time: they wait for each other, at most until
/// the destructor's deadline. The memory lives as long as the arena, which outlives the plans and
/// calls that use it. Not movable.
/// @snippet tests/device/snippets.cpp device_arena
class device_arena {
public:
    /// @throws hvd::mismatch_error for different sizes, hvd::usage_error where there is not so much
    /// memory, and hvd::peer_error on the other ranks then.
    template <class B>
        requires(B::has_arenas)
    device_arena(communicator<B>& comm, std::size_t bytes)
        : session_(detail::device_access::session_of(comm)), memory_(session_->open_arena(bytes)) {}
    device_arena(const device_arena&) = delete;
    device_arena& operator=(const device_arena&) = delete;
    ~device_arena() { session_->close_arena(memory_); }

    /// A tensor of the given shape (`hvd::shape(rows, columns)`), uninitialised, aligned to 128
    /// bytes.
    /// @throws hvd::usage_error if there is not enough left.
    template <class T, std::size_t Rank>
    tensor_view<T, device, Rank> tensor(extents<Rank> shape) {
        const std::size_t sizes[] = {detail::product(shape.data(), Rank), sizeof(T)};
        const std::size_t bytes = detail::product(sizes, 2), left = memory_.size() - used_;
        if (bytes > left)
            throw usage_error(
                session_->rank(),
                detail::text("hvd: device_arena on rank ", session_->rank(), ": ", bytes,
                             " bytes wanted, ", left, " left of ", memory_.size()));
        constexpr std::size_t unit = detail::tuning::device_unit;
        std::byte* const data = memory_.data() + used_;
        used_ = (used_ + bytes + unit - 1) / unit * unit;
        if (used_ > memory_.size()) used_ = memory_.size();
        session_->add_padding({data + bytes, memory_.data() + used_});
        return {reinterpret_cast<T*>(data), shape};
    }

    /// Bytes in all, and those that tensors have taken.
    std::size_t size() const noexcept { return memory_.size(); }
    std::size_t used() const noexcept { return used_; }

private:
    std::shared_ptr<detail::device_session> session_;
    std::span<std::byte> memory_;
    std::size_t used_ = 0;
};

}  // namespace v0
}  // namespace hvd
