// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>
#include <vector>

#include "../../platform/nccl_api.hpp"
#include "../session.hpp"
#include "issue.hpp"
#include "scale.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// How far a rank is that joins the others. A rank that another one left is lost.
enum class joining { under_way, done, lost };

// Uses a nonblocking communicator of NCCL. Every call is polled until NCCL has taken it, before
// anything else touches NCCL or the stream. After a failure the communicator is revoked and refuses
// further calls. Revoking frees the stream and allows a shrink. A rank that is alone has no
// communicator of NCCL until it needs one.
class nccl_session final : public device_session {
public:
    using device_session::device_session;
    ~nccl_session() { end(); }

    ncclComm_t handle() const { return comm_; }
    const nccl_library& library() const { return library_; }

    // Throws if the header or the running library lacks a function that has no substitute.
    void require(nccl_since what, const char* label) const {
        if (!library_.has(what))
            throw usage_error(rank(),
                              text("hvd: ", label, " on rank ", rank(), ": needs NCCL ",
                                   nccl_version_text(int(what)), ", the library is ",
                                   nccl_version_text(library_.version()), " and its header ",
                                   nccl_version_text(NCCL_VERSION_CODE)));
    }

    // Begins to join the other ranks, or goes on with it, at most until `until`.
    joining join(const ncclUniqueId& id, time_point until) {
        const current_device here(device(), rank());
        constexpr const char* api = "ncclCommInitRankConfig";
        ncclConfig_t config = not_blocking();
        ncclResult_t state = ncclInProgress;
        if (comm_ == nullptr) state = ncclCommInitRankConfig(&comm_, size(), id, rank(), &config);
        for (backoff pauses(false);;) {
            if (state == ncclRemoteError) return joining::lost;
            if (state != ncclSuccess && state != ncclInProgress)
                throw_nccl_error(state, api, rank(), comm_, std::source_location::current());
            check_nccl(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", rank());
            if (state == ncclSuccess) return joining::done;
            if (state == ncclInProgress && pauses.pause() && now() > until)
                return joining::under_way;
        }
    }

    // Ends a communicator that not all ranks have joined.
    void leave() noexcept {
        if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
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
        operations_.clear();
        for (const collective_call& call : calls)
            operations_.push_back(operation_for(call, label, limit));
        // NCCL takes 2048 calls in a group. A call with counts is one for each rank.
        const std::size_t most = size() < 1024 ? 1024 / std::size_t(size()) : 1;
        for (std::size_t first = 0; first < calls.size(); first += most) {
            const std::size_t n = calls.size() - first < most ? calls.size() - first : most;
            enqueue_group(calls.subspan(first, n), operations_.data() + first, label, stream,
                          limit);
        }
        guarded([&] {
            for (std::size_t i = 0; i < calls.size(); ++i)
                if (operations_[i].after != 1) scale_result(calls[i], operations_[i].after, stream);
        });
    }

    void check(const collective_call& call, const char* label) const override {
        if (call.reduces()) scale_of(call, size(), rank(), label);
    }

    bool can_be_captured() const override { return true; }
    bool exchanges_in_place() const override { return false; }

    // Derives a communicator by NCCL's own function: `make(comm, &result, &config)`.
    template <class F>
    ncclComm_t derive(const char* api, F&& make) {
        const current_device here(device(), rank());
        ncclConfig_t config = not_blocking();
        ncclComm_t result = nullptr;
        settle(make(comm_, &result, &config), api, limit_for({}));
        return result;
    }

    // Allocates memory with ncclMemAlloc, at the same place of a window on all ranks. NCCL moves it
    // without copies.
    std::span<std::byte> open_arena(std::size_t bytes) override {
        const current_device here(device(), rank());
        void* memory = nullptr;
        std::unique_ptr<void, nccl_memory> kept;
        agree_on_arena(bytes, [&] {
            check_nccl(ncclMemAlloc(&memory, bytes), "ncclMemAlloc", rank());
            kept.reset(memory);
        });
        open_window opened{static_cast<std::byte*>(memory)};
        if (size() > 1 && bytes > 0) {
            if (library_.has(nccl_since::windows))
                settle(ncclCommWindowRegister(comm_, memory, bytes, &opened.window,
                                              NCCL_WIN_COLL_SYMMETRIC),
                       "ncclCommWindowRegister", limit_for({}));
            else
                settle(ncclCommRegister(comm_, memory, bytes, &opened.registration),
                       "ncclCommRegister", limit_for({}));
            windows_.push_back(opened);
        }
        const std::span<std::byte> arena(static_cast<std::byte*>(kept.release()), bytes);
        add_arena(arena);
        return arena;
    }

    void close_arena(std::span<std::byte> memory) noexcept override {
        remove_arena(memory.data());
        for (const auto& [data, window, registration] : windows_)
            if (data == memory.data()) close_window(window, registration);
        std::erase_if(windows_, [&](const auto& w) { return w.data == memory.data(); });
        ncclMemFree(memory.data());
    }

    void look_for_errors(const char* label) override {
        refuse_if_broken(label);
        if (comm_ == nullptr) return;
        ncclResult_t state = ncclSuccess;
        const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
        if (asked != ncclSuccess) fail(asked, "ncclCommGetAsyncError", false);
        if (state != ncclSuccess && state != ncclInProgress) fail(state, label, false);
    }

    void give_up(std::string_view why) noexcept override {
        if (broken()) return;
        device_session::give_up(why);
        if (comm_ == nullptr) return;
        if (library_.has(nccl_since::revoking)) {
            const ncclResult_t revoked = ncclCommRevoke(comm_, NCCL_REVOKE_DEFAULT);
            if (revoked == ncclSuccess || revoked == ncclInProgress) return;
        }
        if (owned_) ncclCommAbort(std::exchange(comm_, nullptr));
    }

private:
    struct scaled_operation {
        ncclRedOp_t op = ncclSum;
        double after = 1;  // the factor for the result after NCCL is done
        bool scales = false;
    };
    struct nccl_memory {
        void operator()(void* memory) const { ncclMemFree(memory); }
    };
    struct open_window {
        const std::byte* data;
        ncclWindow_t window = nullptr;
        void* registration = nullptr;  // instead of a window, before NCCL had any
    };
    struct premultiplied {
        dtype id;
        double factor;
        ncclRedOp_t op;
    };

    scaled_operation operation_for(const collective_call& call, const char* label,
                                   time_point limit) {
        if (call.entry.kind == collective::barrier && scratch_.data() == nullptr)
            scratch_ = guarded([&] { return cuda_memory(cuda_memory::kind::device, 16, rank()); });
        if (!call.reduces()) return {};
        const nccl_scale scale = scale_of(call, size(), rank(), label);
        if (scale.before == 1) return {nccl_op(call.entry.op), scale.after, false};
        return {premultiplied_sum(call.entry.id, scale.before, limit), scale.after, true};
    }

    void close_window(ncclWindow_t window, void* registration) noexcept {
        if (comm_ == nullptr) return;
        try {
            if (window != nullptr)
                settle(ncclCommWindowDeregister(comm_, window), "ncclCommWindowDeregister",
                       destructor_limit());
            else
                settle(ncclCommDeregister(comm_, registration), "ncclCommDeregister",
                       destructor_limit());
        } catch (...) {  // the communicator is given up, and reports it at its next call
        }
    }

    // Returns the sum of elements that are multiplied by `factor` on this rank. It is made once for
    // each type and factor.
    ncclRedOp_t premultiplied_sum(dtype id, double factor, time_point limit) {
        for (const premultiplied& s : premultiplied_)
            if (s.id == id && s.factor == factor) return s.op;
        if (comm_ == nullptr) {  // a rank that is alone needs NCCL only for this
            ncclUniqueId alone;
            check_nccl(ncclGetUniqueId(&alone), "ncclGetUniqueId", rank());
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
        nccl_calls made;
        check_nccl(ncclGroupStart(), "ncclGroupStart", rank());
        for (std::size_t i = 0; i < calls.size(); ++i)
            if (needs_nccl(i))
                issue(made, calls[i], operations[i].op,
                      {comm_, stream, rank(), size(), scratch_.data(), library_});
        const ncclResult_t ended = ncclGroupEnd();
        if (made.failed()) fail(made.code(), made.api(), made.alone());
        if (ended != ncclSuccess && ended != ncclInProgress) fail(ended, "ncclGroupEnd", false);
        settle(ended, label, limit);
    }

    void scale_result(const collective_call& call, double factor, cudaStream_t stream) {
        if (call.entry.kind == collective::reduce && call.entry.root != rank()) return;
        launch_scale(call.out, call.count_of(rank()),
                     copy_between(call.entry.id, call.entry.id, true), factor, stream, rank());
    }

    // The headers travel through device memory.
    void gather_headers(table<call_header>& all, time_point limit) override {
        const current_device here(device(), rank());
        const std::size_t each = sizeof(call_header);
        const call_header& mine = all[std::size_t(rank())];
        const cuda_memory memory = guarded(
            [&] { return cuda_memory(cuda_memory::kind::device, each * all.size(), rank()); });
        std::byte* const own = memory.data() + std::size_t(rank()) * each;
        const cudaStream_t stream = own_stream();
        const finish_before_leaving finish{stream};
        guarded([&] { copy_async(own, &mine, each, cudaMemcpyHostToDevice, stream, rank()); });
        collective_call gather;
        gather.entry.kind = collective::allgather;
        gather.entry.count = each;
        gather.in = own;
        gather.out = memory.data();
        enqueue({&gather, 1}, "agreement", stream, limit);
        wait(mark(stream), "agreement", limit);
        guarded([&] {
            copy_async(all.data(), memory.data(), memory.size(), cudaMemcpyDeviceToHost, stream,
                       rank());
        });
        wait(mark(stream), "agreement", limit);
    }

    static ncclConfig_t not_blocking() {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        return config;
    }

    // Waits until NCCL has taken the call.
    void settle(ncclResult_t code, const char* api, time_point limit,
                std::source_location where = std::source_location::current()) {
        backoff pauses(false);
        while (code == ncclInProgress) {
            if (comm_ == nullptr) return;
            const ncclResult_t asked = ncclCommGetAsyncError(comm_, &code);
            if (asked != ncclSuccess) fail(asked, "ncclCommGetAsyncError", false, where);
            if (code == ncclInProgress && pauses.pause() && now() > limit) expire(api);
        }
        if (code != ncclSuccess) fail(code, api, true, where);
    }

    // If NCCL refuses an argument before it does anything, only this rank fails.
    [[gnu::cold, noreturn]] void fail(
        ncclResult_t code, const char* api, bool before_anything,
        std::source_location where = std::source_location::current()) {
        try {
            if (code == ncclRemoteError)
                throw peer_error(rank(),
                                 text("hvd: ", api, " on rank ", rank(),
                                      ": another rank is gone: ", ncclGetErrorString(code)),
                                 {});
            throw_nccl_error(code, api, rank(), comm_, where);
        } catch (const error& e) {
            if (code != ncclInvalidArgument || !before_anything) give_up(e.what());
            throw;
        }
    }

    void end() noexcept {
        if (comm_ == nullptr) return;
        if (!owned_) {  // it continues without the objects that were made in it
            for (const premultiplied& p : premultiplied_) ncclRedOpDestroy(p.op, comm_);
            return;
        }
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
    ncclComm_t comm_ = nullptr;
    bool owned_ = true;
    std::vector<open_window> windows_;  // windows of arenas
    std::vector<premultiplied> premultiplied_;
    std::vector<scaled_operation> operations_;  // the operations of the calls being enqueued
    cuda_memory scratch_;                       // the memory that a barrier reduces
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
