// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <vector>

#include "../../device/arguments.hpp"
#include "../core.hpp"
#include "tensor_call.hpp"

namespace hvd::inline v0::detail {

// Learns when the work of device tensors is done, for callbacks, coroutines and observers. A thread
// looks at the events, from the first such tensor on, and sleeps while there is none. No other
// thread of the engine waits for a device.
class work_watch {
public:
    work_watch() = default;
    work_watch(const work_watch&) = delete;
    work_watch& operator=(const work_watch&) = delete;
    ~work_watch() { stop(); }

    // Watches a tensor that is not submitted yet, or, for a coroutine, one that is. False if the
    // engine has ended or the tensor has failed: then its request knows all.
    bool begin(device_tensor_call& call) {
        const lock_guard lock(mutex_);
        if (ending_ || call.known == device_tensor_call::state::failed) return false;
        start();
        work_.reserve(watched_ + 1);  // the engine has no use for a failure when the work begins
        engine_core& core = core_of(call);
        call.over = shared<end_of_work>::make();
        copy_header(call.over->described.entry, call.described.entry);
        core.adopt(*call.over);
        ++watched_;
        core.begin_watch();
        if (call.known == device_tensor_call::state::enqueued) add(call);
        return true;
    }
    // The engine has not taken the tensor.
    void forget(device_tensor_call& call) noexcept {
        if (call.over) end_watch(core_of(call));
        call.over = {};
    }

    // The engine is done with a tensor: its work is enqueued, or it has failed.
    void on_done(device_tensor_call& call, bool has_failed) noexcept {
        {
            const lock_guard lock(mutex_);
            call.known = has_failed ? device_tensor_call::state::failed
                                    : device_tensor_call::state::enqueued;
            if (!call.over) return;
            if (!has_failed) return add(call);
        }
        call.over->finish(nullptr);  // the request of the tensor gets the exception
        end_watch(core_of(call));
    }

    // Makes later work of the stream wait for a watched tensor, whose work is enqueued.
    void follow(device_tensor_call& call, device_stream stream) {
        const lock_guard lock(mutex_);
        device_access::follow(call.under_way, stream);
    }

    bool is_empty() {
        const lock_guard lock(mutex_);
        return work_.empty();
    }
    // Nothing is watched any more once all that is there is over.
    void stop() noexcept {
        {
            const lock_guard lock(mutex_);
            ending_ = true;
            changed_.notify_all();
        }
        thread_.join();
    }

private:
    struct ended {
        shared<device_tensor_call> call;
        std::exception_ptr failure;
    };

    static engine_core& core_of(const device_tensor_call& call) {
        return static_cast<engine_core&>(*call.owner);
    }

    // ---- with the lock held ---------------------------------------------------------------------

    void start() {
        if (!thread_) thread_ = thread([this] { run(); });
        if (!thread_) throw usage_error(-1, "hvd: the system gives no thread to watch devices");
    }
    void add(device_tensor_call& call) {
        work_.push_back(shared<device_tensor_call>(&call));
        changed_.notify_all();
    }

    // ---- the thread -----------------------------------------------------------------------------

    void run() {
        is_hvd_thread = true;
        other_processes others;
        while (wait_for_work()) {
            backoff pauses(false, others);
            while (!end_what_is_over()) pauses.pause();
        }
    }

    // False at the end.
    bool wait_for_work() {
        const lock_guard lock(mutex_);
        while (work_.empty() && !ending_) changed_.wait(mutex_);
        return !work_.empty();
    }

    bool end_what_is_over() {
        bool any = false;
        std::size_t at = 0;
        for (ended e; take_what_is_over(at, e); any = true) end(e);
        return any;
    }
    // Looks from that place on. It needs no memory.
    bool take_what_is_over(std::size_t& at, ended& e) {
        const lock_guard lock(mutex_);
        for (; at < work_.size(); ++at) {
            e.failure = nullptr;
            try {
                if (!work_[at]->under_way.test()) continue;
            } catch (...) {
                e.failure = std::current_exception();
            }
            e.call = std::move(work_[at]);
            work_.erase(work_.begin() + std::ptrdiff_t(at));
            return true;
        }
        return false;
    }

    // Called without the lock: a callback may submit tensors.
    void end(ended& e) noexcept {
        device_tensor_call& call = *e.call;
        engine_core& core = core_of(call);
        if (e.failure) core.lose_devices(e.failure);
        try {
            tell(core, call, !e.failure);
        } catch (...) {
            if (!e.failure) e.failure = std::current_exception();
        }
        call.over->finish(e.failure);
        core.call_back(std::move(call.then), e.failure);
        end_watch(core);
    }
    void end_watch(engine_core& core) noexcept {
        {
            const lock_guard lock(mutex_);
            --watched_;
        }
        core.end_watch();
    }
    static void tell(const engine_core& core, const device_tensor_call& call, bool succeeded) {
        if (call.observed_name.empty()) return;
        const call_header& h = call.described.entry;
        event e{name_of(h.kind), call.observed_name, h.id,        call.bytes,
                core.rank(),     core.size(),        quick_now(), call.made};
        e.on_device = true;
        e.ready = call.ready;
        e.enqueued = call.enqueued;
        core.tell_of_work(e, succeeded);
    }

    mutex mutex_;
    condition changed_;
    std::vector<shared<device_tensor_call>> work_;  // has room for all that are watched
    std::size_t watched_ = 0;
    bool ending_ = false;
    thread thread_;  // last: it uses all others
};

}  // namespace hvd::inline v0::detail
