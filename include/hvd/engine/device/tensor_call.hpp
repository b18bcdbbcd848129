// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../../device/request.hpp"
#include "../../execution/progress.hpp"

namespace hvd::inline v0::detail {

class work_watch;

// The end of a device tensor's work, for a coroutine or a thread that waits.
struct end_of_work : queued {
    operation described{};
    end_of_work() { op = &described; }
};

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
    bool has_callback = false;  // of its request

    // For those who are told when the work is done.
    std::function<void(std::exception_ptr)> then;
    std::string observed_name;  // empty: no observer is told
    std::size_t bytes = 0;
    time_point enqueued = 0;
    work_watch* watch = nullptr;
    shared<end_of_work> over;  // null unless the tensor is watched. Its user makes it

    // The watch's, with its lock.
    enum class state { submitted, enqueued, failed } known = state::submitted;
};

}  // namespace hvd::inline v0::detail
