// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>
#include <vector>

#include "../../platform/nccl_api.hpp"
#include "../session.hpp"
#include "beginning.hpp"
#include "headers.hpp"
#include "issue.hpp"
#include "options.hpp"
#include "scale.hpp"
#include "together.hpp"
#include "windows.hpp"

namespace hvd::inline v0::detail {

// Uses a communicator of NCCL, which does not block unless the user wants so. Then a thread of NCCL
// does the call, after the call has returned, and writes the results. Every such call is polled to
// its end before anything else touches NCCL, the stream or the results. After a failure the
// communicator is given up and refuses further calls. A rank that is alone has no communicator of
// NCCL until it needs one.
class nccl_session final : public device_session,
                           public std::enable_shared_from_this<nccl_session> {
public:
    nccl_session(int rank, int size, int device, const communicator_options& options,
                 const nccl_configuration& own)
        : device_session(rank, size, device, options, own.stream_priority()), own_(own) {
        if (size == 1) return;
        const current_device here(device, rank);
        const std::size_t bytes = std::size_t(size) * sizeof(call_header);
        headers_ = cuda_memory(cuda_memory::kind::device, bytes, rank);
        scratch_ = cuda_memory(cuda_memory::kind::device, 16, rank);
    }
    ~nccl_session() {
        stop_watching();
        end();
    }

    ncclComm_t handle() const { return comm_; }
    const nccl_library& library() const { return library_; }
    const nccl_configuration& configuration() const { return own_; }
    nccl_options own_options() const { return own_.options(); }
    // The number of groups of calls that NCCL has been given.
    std::uint64_t calls() const { return calls_; }

    // Joins the ranks by NCCL, all or none. The host tells failures to all, now and later.
    void join_all(const nccl_beginning& beginning, std::unique_ptr<host_ranks> host,
                  time_point limit) {
        host_ = std::move(host);
        try {
            work_together(*host_, "communicator<nccl>", options(), limit,
                          [&](time_point until) { return join(beginning, until); });
        } catch (...) {
            abort();
            throw;
        }
    }

    // For a session whose communicator was split off: the part of the host's ranks that it has.
    void connect(std::unique_ptr<host_ranks> host) { host_ = std::move(host); }
    std::unique_ptr<host_ranks> split_host(int color, int key) {
        return host_ == nullptr ? nullptr : host_->split(color, key);
    }

    // Takes a communicator that NCCL made from another, or that the user made. If `owned`, this
    // session ends it.
    void take(ncclComm_t comm, bool owned) {
        comm_ = comm;
        owned_ = owned;
        settle(ncclInProgress, "ncclCommGetAsyncError", limit_for({}));
    }

    // All calls are one group to NCCL, which launches those of about one size together.
    void enqueue(std::span<const collective_call> calls, const char* label, cudaStream_t stream,
                 time_point limit) override {
        refuse_if_broken(label);
        const premultiplied_sums made_here{*this};
        operations_.clear();
        for (const collective_call& call : calls)
            operations_.push_back(operation_for(call, label, limit));
        for (std::size_t first = 0, last = 0; first < calls.size(); first = last) {
            last = end_of_group(calls, first, size());
            enqueue_group(calls.subspan(first, last - first), operations_.data() + first, label,
                          stream, limit);
        }
        guarded([&] {
            for (std::size_t i = 0; i < calls.size(); ++i)
                if (operations_[i].after != 1)
                    scale_result(calls[i], operations_[i].after, stream, rank());
        });
    }

    // Enqueues messages as one group.
    void exchange(std::span<const device_message> messages, const char* label, cudaStream_t stream,
                  time_point limit) {
        refuse_if_broken(label);
        in_group(label, stream, limit, [&](nccl_calls& made, const nccl_place& at) {
            for (const device_message& m : messages) issue(made, m, at);
        });
    }

    void check(const collective_call& call, const char* label) const override {
        if (call.reduces()) scale_of(call, size(), rank(), label);
    }

    // A graph that is launched after a revoke would wait for the lost rank for ever.
    const char* obstacle_to_capture() const override {
        return listens() ? "a communicator of elastic::run" : nullptr;
    }
    bool exchanges_in_place() const override { return false; }

    // Derives a communicator by NCCL's own function: `make(comm, result, config)`. It has the
    // configuration of this one. Ranks that are left of one that was given up may have a host of
    // their own, `left`.
    template <class F>
    ncclComm_t derive(const char* name, const char* api, F&& make, host_ranks* left = nullptr) {
        const inside turn(*this);
        const current_device here(device(), rank());
        const time_point limit = limit_for({});
        if (broken() && left == nullptr) wait_for_revoke(api, limit);
        late_result<ncclComm_t> result;
        try {
            do_together(broken() ? left : host_.get(), name, api, limit,
                        [&] { return make(comm_, result.get(), nullptr); });
        } catch (...) {
            if (still_works()) result.leak();
            else if (*result.get() != nullptr)
                ncclCommAbort(*result.get());  // NCCL made it in vain
            throw;
        }
        return *result.get();
    }

    // Allocates memory with ncclMemAlloc, at the same place of a window on all ranks. NCCL moves it
    // without copies. Before NCCL had windows, each rank registers its memory by itself.
    std::span<std::byte> open_arena(std::size_t bytes) override {
        const current_device here(device(), rank());
        void* memory = nullptr;
        std::unique_ptr<void, nccl_memory> kept;
        agree_on_arena(bytes, [&] {
            check_nccl(ncclMemAlloc(&memory, bytes), "ncclMemAlloc", rank());
            kept.reset(memory);
        });
        if (bytes == 0) return {};
        const auto data = owned_memory(std::move(kept));
        if (library_.has(nccl_since::windows)) share_memory(data.get(), bytes, limit_for({}));
        else windows_.open_registration(data.get(), register_memory(data.get(), bytes));
        arena_memory_.push_back(data);
        add_arena({data.get(), bytes});
        return {data.get(), bytes};
    }

    void close_arena(std::span<std::byte> memory) noexcept override {
        std::shared_ptr<std::byte> closed;  // it is freed when this thread is not inside
        const inside turn(*this);
        remove_arena(memory.data());
        for (auto& m : arena_memory_)
            if (m.get() == memory.data()) closed.swap(m);
        std::erase(arena_memory_, nullptr);
    }

    // Memory that can become a window, or other memory where NCCL has none.
    std::shared_ptr<std::byte> memory_for_plan(std::size_t bytes) override {
        void* memory = nullptr;
        if (size() == 1 || !library_.has(nccl_since::windows) ||
            ncclMemAlloc(&memory, bytes) != ncclSuccess)
            return device_session::memory_for_plan(bytes);
        return owned_memory(std::unique_ptr<void, nccl_memory>(memory));
    }

    // Makes the memory a window, if every rank can, and at the same place.
    void share_memory(std::byte* memory, std::size_t bytes, time_point limit) override {
        if (size() == 1 || !library_.has(nccl_since::windows)) return;
        const inside turn(*this);
        const current_device here(device(), rank());
        call_header mine = agreement_header("window");
        mine.count = windows_.contains(memory);
        mine.content = windows_.places();
        for (const call_header& h : agree(*this, mine, limit))
            if (h.count == 0 || h.content != mine.content) return;
        register_window(memory, bytes, limit);
    }

    // Registers memory of the user. A rank that is alone has nothing to register it with.
    void* register_memory(void* memory, std::size_t bytes) {
        const inside turn(*this);
        refuse_if_broken("register_memory");
        if (comm_ == nullptr || bytes == 0) return nullptr;
        const current_device here(device(), rank());
        void* registration = nullptr;
        settle(ncclCommRegister(comm_, memory, bytes, &registration), "ncclCommRegister",
               limit_for({}));
        return registration;
    }
    void deregister(void* registration) noexcept {
        const inside turn(*this);
        const capture_relaxed relaxed;
        close_window(nullptr, registration);
    }

    void look_for_errors(const char* label) override {
        refuse_if_broken(label);
        if (comm_ == nullptr) return;
        ncclResult_t state = ncclSuccess;
        const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
        if (asked != ncclSuccess) fail(asked, "ncclCommGetAsyncError");
        if (state != ncclSuccess && state != ncclInProgress) fail(state, label);
    }

    // Revoking frees the stream and allows a shrink. NCCL can't revoke a communicator on which its
    // thread is still at work, or failed. An abort waits for the thread.
    void give_up(std::string_view why) noexcept override {
        const inside turn(*this);
        const bool again = broken();
        device_session::give_up(why);
        if (comm_ == nullptr || (again && !working_.load())) return;
        if (!working_.load() && revoke()) return;
        if (owned_) abort();
    }

private:
    // NCCL returns the state, and that of the network stays as it was.
    bool revoke() noexcept {
        const lock_guard lock(handle_mutex_);
        if (is_revoked_ || comm_ == nullptr || !library_.has(nccl_since::revoking))
            return is_revoked_;
        const ncclResult_t revoked = ncclCommRevoke(comm_, NCCL_REVOKE_DEFAULT);
        return is_revoked_ = revoked == ncclSuccess || revoked == ncclInProgress ||
                             revoked == ncclRemoteError;
    }
    // NCCL would use freed memory if it were revoked while its thread is at work. The caller that
    // is inside polls that thread then, and gives the communicator up by itself.
    void end_kernels() noexcept override {
        if (!working_.load()) revoke();
    }

    // NCCL needs an operation until it has taken the calls.
    struct premultiplied_sums {
        nccl_session& session;
        ~premultiplied_sums() {
            for (const auto& s : session.premultiplied_)
                if (session.comm_ != nullptr) ncclRedOpDestroy(s.op, session.comm_);
            session.premultiplied_.clear();
        }
    };

    // Begins to join the other ranks, or goes on with it, at most until `until`.
    joining join(const nccl_beginning& beginning, time_point until) {
        const current_device here(device(), rank());
        ncclConfig_t config = own_.config();
        ncclResult_t state = ncclInProgress;
        if (comm_ == nullptr) state = beginning.begin(&comm_, size(), rank(), &config);
        return proceed(state, beginning.api(), until);
    }

    // Polls NCCL's thread, at most until `until`.
    joining proceed(ncclResult_t state, const char* api, time_point until) {
        working_.store(true);
        for (backoff pauses(false);;) {
            if (state == ncclRemoteError) return joining::lost;
            if (state != ncclSuccess && state != ncclInProgress)
                throw_nccl_error(state, api, rank(), comm_, std::source_location::current());
            check_nccl(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", rank());
            working_.store(state != ncclSuccess);
            if (!working_.load()) return joining::done;
            if (state == ncclInProgress && pauses.pause() && now() > until)
                return joining::under_way;
        }
    }

    // Makes a call that NCCL ends when all ranks have made it. Without a host a rank that fails is
    // late for the others.
    template <class Call>
    void do_together(host_ranks* host, const char* name, const char* api, time_point limit,
                     Call&& call) {
        if (host == nullptr) return settle_later(call(), api, limit);
        bool is_ready = !broken(), made = false;
        try {
            work_together(*host, name, options(), limit, [&](time_point until) {
                if (is_late(never)) expire(api);
                if (!is_ready) {
                    const joining revoked = proceed(ncclInProgress, "ncclCommRevoke", until);
                    if (revoked != joining::done) return revoked;
                    is_ready = true;
                }
                return proceed(std::exchange(made, true) ? ncclInProgress : call(), api, until);
            });
        } catch (...) {
            give_up(what_of(std::current_exception()));
            throw;
        }
    }

    // True if NCCL may still write to results and to memory that it was given.
    bool still_works() const { return working_.load() && comm_ != nullptr; }

    // NCCL derives nothing before a revoke has ended.
    void wait_for_revoke(const char* api, time_point limit) {
        const ncclResult_t state = poll("ncclCommRevoke", limit);
        if (state == ncclRemoteError)
            throw peer_error(rank(),
                             text("hvd: ", api, " on rank ", rank(),
                                  ": NCCL can't derive a communicator after its network has lost a "
                                  "rank: make one from the host's communicator of those left"),
                             {});
        if (state != ncclSuccess) fail(state, "ncclCommRevoke");
    }

    // Keeps the session until the memory is freed.
    std::shared_ptr<std::byte> owned_memory(std::unique_ptr<void, nccl_memory> memory) {
        auto* const data = static_cast<std::byte*>(memory.get());
        windows_.add(data);
        static_cast<void>(memory.release());
        return {data, [self = shared_from_this()](std::byte* freed) { self->free_memory(freed); }};
    }

    // Each rank does it by itself, whenever it has no more use for the memory. NCCL may free it
    // under work that uses it, or wait for all work of the device.
    void free_memory(std::byte* data) noexcept {
        const capture_relaxed relaxed;
        await_streams("the end of memory");
        if (closes_window_of(data))
            open_calls::of_this_thread().free(data, device(),
                                              [](void* memory) { ncclMemFree(memory); });
    }

    // Returns false if NCCL may still use the memory.
    bool closes_window_of(std::byte* data) noexcept {
        const inside turn(*this);
        const nccl_window open = windows_.take(data);
        close_window(open.window, open.registration);
        return !still_works();
    }

    void register_window(std::byte* memory, std::size_t bytes, time_point limit) {
        constexpr const char* api = "ncclCommWindowRegister";
        late_result<ncclWindow_t> window;
        try {
            do_together(broken() ? nullptr : host_.get(), "window", api, limit, [&] {
                return ncclCommWindowRegister(comm_, memory, bytes, window.get(),
                                              NCCL_WIN_COLL_SYMMETRIC);
            });
        } catch (...) {
            if (still_works()) window.leak();
            else windows_.open(memory, *window.get());  // NCCL may have made it in vain
            throw;
        }
        windows_.open(memory, *window.get());
    }

    scaled_operation operation_for(const collective_call& call, const char* label,
                                   time_point limit) {
        if (!call.reduces()) return {};
        const nccl_scale scale = scale_of(call, size(), rank(), label);
        if (scale.before == 1) return {nccl_op(call.entry.op), scale.after, false};
        return {premultiplied_sum(call.entry.id, scale.before, limit), scale.after, true};
    }

    void close_window(ncclWindow_t window, void* registration) noexcept {
        if (comm_ == nullptr || working_.load() || (!window && !registration)) return;
        try {
            if (broken()) poll("ncclCommRevoke", destructor_limit());  // which uses the windows
            working_.store(false);
            if (window != nullptr)
                settle(ncclCommWindowDeregister(comm_, window), "ncclCommWindowDeregister",
                       destructor_limit());
            else
                settle(ncclCommDeregister(comm_, registration), "ncclCommDeregister",
                       destructor_limit());
        } catch (...) {  // the communicator is given up, and reports it at its next call
        }
    }

    // Returns the sum of elements that are multiplied by `factor` on this rank. The calls that are
    // enqueued together share one for each type and factor.
    ncclRedOp_t premultiplied_sum(dtype id, double factor, time_point limit) {
        for (const auto& s : premultiplied_)
            if (s.id == id && s.factor == factor) return s.op;
        if (comm_ == nullptr) {  // a rank that is alone needs NCCL only for this
            nccl_beginning alone;
            alone.make_id(0);
            while (join(alone, limit) == joining::under_way)
                if (now() > limit) expire("ncclCommInitRankConfig");
        }
        ncclRedOp_t op = ncclSum;
        nccl_scalar scalar(id, factor);
        settle(ncclRedOpCreatePreMulSum(&op, scalar.data(), nccl_type(id), ncclScalarHostImmediate,
                                        comm_),
               "ncclRedOpCreatePreMulSum", limit);
        premultiplied_.push_back({id, factor, op});
        return op;
    }

    void enqueue_group(std::span<const collective_call> calls, const scaled_operation* operations,
                       const char* label, cudaStream_t stream, time_point limit) {
        const auto needs_nccl = [&](std::size_t i) { return size() > 1 || operations[i].scales; };
        std::size_t grouped = 0;
        for (std::size_t i = 0; i < calls.size(); ++i) {
            if (needs_nccl(i)) ++grouped;
            else guarded([&] { copy_alone(calls[i], stream, rank()); });
        }
        if (grouped == 0) return;
        in_group(label, stream, limit, [&](nccl_calls& made, const nccl_place& at) {
            for (std::size_t i = 0; i < calls.size(); ++i)
                if (needs_nccl(i)) issue(made, calls[i], operations[i].op, at);
        });
    }

    // Gives NCCL the calls of `f(made, place)` as one group.
    template <class F>
    void in_group(const char* label, cudaStream_t stream, time_point limit, F&& f) {
        nccl_calls made;
        ++calls_;
        check_nccl(ncclGroupStart(), "ncclGroupStart", rank());
        f(made, nccl_place{comm_, stream, rank(), size(), scratch_.data(), library_});
        const ncclResult_t ended = ncclGroupEnd();
        if (made.failed()) fail(made.code(), made.api());
        settle(ended, ended == ncclInProgress ? label : "ncclGroupEnd", limit);
    }

    void gather_headers(table<call_header>& all, time_point limit) override {
        gather_through_device(*this, headers_.data(), all, limit);
    }

    // Waits until NCCL's thread has done the call, and returns its result.
    ncclResult_t poll(const char* api, time_point limit,
                      std::source_location where = std::source_location::current()) {
        working_.store(true);
        ncclResult_t state = ncclInProgress;
        for (backoff pauses(false);;) {
            const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
            if (asked != ncclSuccess) fail(asked, "ncclCommGetAsyncError", where);
            if (state != ncclInProgress) break;
            if (pauses.pause() && must_end(limit)) expire(api);
        }
        working_.store(state != ncclSuccess);
        return state;
    }

    void settle(ncclResult_t code, const char* api, time_point limit,
                std::source_location where = std::source_location::current()) {
        if (code == ncclInProgress) code = poll(api, limit, where);
        if (code != ncclSuccess) fail(code, api, where);
    }

    // Waits for a call that returns ncclSuccess before it is done.
    void settle_later(ncclResult_t code, const char* api, time_point limit,
                      std::source_location where = std::source_location::current()) {
        settle(code == ncclSuccess ? ncclInProgress : code, api, limit, where);
    }

    // Every error of NCCL's stays with a nonblocking communicator.
    [[gnu::cold, noreturn]] void fail(
        ncclResult_t code, const char* api,
        std::source_location where = std::source_location::current()) {
        try {
            refuse_if_cut_off(api);
            if (code == ncclRemoteError)
                throw peer_error(rank(),
                                 text("hvd: ", api, " on rank ", rank(),
                                      ": another rank is gone: ", ncclGetErrorString(code)),
                                 {});
            throw_nccl_error(code, api, rank(), comm_, where);
        } catch (...) {
            give_up(what_of(std::current_exception()));
            throw;
        }
    }

    // NCCL's thread, for which this waits, may still write the handle.
    void abort() noexcept {
        const lock_guard lock(handle_mutex_);
        if (comm_ != nullptr) ncclCommAbort(comm_);
        comm_ = nullptr;
    }

    void end() noexcept {
        if (comm_ == nullptr || !owned_) return;
        try {
            const current_device here(device(), rank());
            if (!broken()) {
                settle(ncclCommFinalize(comm_), "ncclCommFinalize", destructor_limit());
                ncclCommDestroy(comm_);
                return;
            }
        } catch (...) {
        }
        if (comm_ != nullptr) ncclCommAbort(comm_);
    }

    const nccl_library library_{rank()};
    const nccl_configuration own_;
    std::uint64_t calls_ = 0;
    ncclComm_t comm_ = nullptr;
    mutex handle_mutex_;  // held while the handle is revoked or aborted
    bool is_revoked_ = false;
    bool owned_ = true;
    atomic<bool> working_ = false;      // NCCL's thread is at work, or failed
    std::unique_ptr<host_ranks> host_;  // null for a communicator of the user's, or shrunk
    nccl_windows windows_;
    std::vector<std::shared_ptr<std::byte>> arena_memory_;
    std::vector<scaled_sum> premultiplied_;
    std::vector<scaled_operation> operations_;  // the operations of the calls being enqueued
    cuda_memory headers_, scratch_;             // the memory of agreements, and of barriers
};

}  // namespace hvd::inline v0::detail
