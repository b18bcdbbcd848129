// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <optional>

#include "../../platform/cuda_api.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// A stream that works beside another for a while. It is made when it is first needed.
class side_stream {
public:
    // Returns the stream, whose work comes after what `main` has been given.
    cudaStream_t fork(cudaStream_t main, int rank) {
        if (!stream_) stream_.emplace(rank);
        point_.record(main, rank);
        point_.make_wait(stream_->get(), rank);
        forked_ = true;
        return stream_->get();
    }

    // The later work of `main` comes after everything that the stream has been given.
    void join(cudaStream_t main, int rank) {
        if (!std::exchange(forked_, false)) return;
        point_.record(stream_->get(), rank);
        point_.make_wait(main, rank);
    }

private:
    std::optional<cuda_stream> stream_;
    cuda_event point_;
    bool forked_ = false;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
