// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "core.hpp"

// The ways from a program into the engine: all units are compiled with them.
namespace hvd::inline v0::detail {

HVD_INLINE void engine_core::submit(std::string_view name, const shared<queued>& call,
                                    const signature& mine, callback then, void (*fill)(queued&),
                                    void (*on_done)(queued&, bool has_failed)) {
    runner_.driver().refuse_if_forked(*call->op);
    adopt(*call);
    pending_tensor entry{call, mine, std::move(then), on_done};
    while (!take(name, entry, fill)) wait_for_refusal_of(name);
}

HVD_INLINE constexpr queue_of_calls engine_core::functions{
    .test = [](queued& call) { return of(call).test(call); },
    .wait = [](queued& call) { of(call).wait(call); },
    .wait_at_end = [](queued& call) { of(call).wait_at_end(call); },
    .resume_later =
        [](queued& call, waiter& last) noexcept {
            engine_core& core = of(call);
            {
                const lock_guard lock(core.mutex_);
                core.coroutines_.add(last);
            }
            core.wake_();
        },
    .forget =
        [](queued& call, waiter& gone) noexcept {
            const lock_guard lock(of(call).mutex_);
            of(call).coroutines_.remove(gone);
        },
    .run_ready = [](queued& call) { of(call).run_ready(); },
    .leave_unseen =
        [](queued& call, std::exception_ptr failure) noexcept {
            const lock_guard lock(of(call).mutex_);
            if (!of(call).unseen_) of(call).unseen_ = std::move(failure);
        }};

}  // namespace hvd::inline v0::detail
