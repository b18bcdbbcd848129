// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <memory>
#include <vector>

#include "../../device/request.hpp"
#include "../../execution/progress.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// A device tensor, or a group of them, that a rank has submitted. For the engine it is complete
// once its work is enqueued; `under_way` stands for the work.
class device_tensor_call final : public queued {
public:
    device_tensor_call() { op = &described; }

    operation described{};  // for errors, and for the reductions that the rank has learnt
    reduction_group group{};
    std::vector<collective_call> calls;
    std::shared_ptr<const void> function;   // of a reduction
    std::size_t room = 0;                   // elements that into() holds
    std::vector<std::size_t> sent, counts;  // elements for each rank, and from each
    cuda_event point;                       // of the user's stream when the tensor was submitted
    time_point due = never;
    device_request under_way;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
