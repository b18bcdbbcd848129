// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../comm/communicator.hpp"
#include "../core/tuning.hpp"
#include "arguments.hpp"

namespace hvd::inline v0 {

namespace detail {

template <class B>
std::shared_ptr<device_session> session_with_arenas(communicator<B>& comm) {
    constexpr bool has_arenas = requires { requires B::has_arenas; };
    static_assert(
        has_arenas,
        "hvd: device_arena needs a communicator<nccl>; other backends have no memory that "
        "all ranks know");
    if constexpr (has_arenas) return device_access::session_of(comm);
    else return {};
}

}  // namespace detail

/// Device memory that all ranks know beforehand: a symmetric window of NCCL (ncclMemAlloc). Plans
/// do not copy its tensors, and make one call for tensors that lie side by side.
///
/// **Collective**: all ranks make it with the same size, and ask for the same tensors in the same
/// order. It ends on all ranks at about the same time: they wait for each other, at most until the
/// destructor's timeout. The memory lives as long as the arena, which outlives the plans and calls
/// that use it. Not movable.
/// @snippet tests/device/snippets.cpp device_arena
class [[nodiscard("hvd: the memory of an arena ends with it")]] device_arena {
public:
    /// @throws hvd::mismatch_error for different sizes, hvd::usage_error if there is not enough
    /// memory; the other ranks then get hvd::peer_error.
    template <class B>
    [[nodiscard("hvd: the memory of an arena ends with it")]]
    device_arena(communicator<B>& comm, std::size_t bytes)
        : session_(detail::session_with_arenas(comm)) {
        const detail::device_session::inside turn(*session_);
        memory_ = session_->open_arena(bytes);
    }
    device_arena(const device_arena&) = delete;
    device_arena& operator=(const device_arena&) = delete;
    ~device_arena() {
        const detail::capture_relaxed relaxed;
        session_->close_arena(memory_);
    }

    /// Returns a tensor of the given shape (`hvd::shape(rows, columns)`), uninitialised, aligned to
    /// 128 bytes.
    /// @throws hvd::usage_error if not enough memory is left.
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

    /// The total bytes, and the bytes that tensors have taken.
    std::size_t size() const noexcept { return memory_.size(); }
    std::size_t used() const noexcept { return used_; }

private:
    std::shared_ptr<detail::device_session> session_;
    std::span<std::byte> memory_;
    std::size_t used_ = 0;
};

}  // namespace hvd::inline v0
