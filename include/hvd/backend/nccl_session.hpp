// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>
#include <vector>

#include "../core/options.hpp"
#include "../detail/clock.hpp"
#include "../detail/nccl_api.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// What one call did, until NCCL has taken all of it: the first failure and who had it.
class nccl_calls {
public:
    void add(ncclResult_t code, const char* api) {
        ++count_;
        if (failed() || code == ncclSuccess || code == ncclInProgress) return;
        code_ = code;
        api_ = api;
    }
    bool failed() const { return code_ != ncclSuccess; }
    bool alone() const { return count_ == 1; }
    ncclResult_t code() const { return code_; }
    const char* api() const { return api_; }

private:
    ncclResult_t code_ = ncclSuccess;
    const char* api_ = "";
    int count_ = 0;
};

// One rank's part of an NCCL communicator that does not block: every call is polled for until NCCL has taken it,
// before anything else touches NCCL or the stream. After a failure it is revoked, which frees the stream and
// leaves it to be shrunk, and refuses further calls.
class nccl_session {
public:
    nccl_session(int rank, int size, int device, const communicator_options& options)
        : options_(options), device_(device), rank_(rank), size_(size), stream_((current_device(device, rank), rank)) {}
    nccl_session(const nccl_session&) = delete;
    nccl_session& operator=(const nccl_session&) = delete;
    ~nccl_session() { end(); }

    int rank() const { return rank_; }
    int size() const { return size_; }
    int device() const { return device_; }
    const communicator_options& options() const { return options_; }
    ncclComm_t handle() const { return comm_; }

    time_point limit_for(time_span deadline) const {
        if (deadline.nanoseconds() == 0) deadline = options_.deadline;
        return deadline.nanoseconds() == 0 ? never : now() + deadline.nanoseconds();
    }

    // With the other ranks.
    void join(const ncclUniqueId& id) {
        const current_device here(device_, rank_);
        ncclConfig_t config = not_blocking();
        settle(ncclCommInitRankConfig(&comm_, size_, id, rank_, &config), "ncclCommInitRankConfig", limit_for({}));
    }

    // A communicator made by NCCL out of another, or by the user; `owned`: to be ended by this one.
    void take(ncclComm_t comm, bool owned) {
        comm_ = comm;
        owned_ = owned;
        settle(ncclInProgress, "ncclCommGetAsyncError", limit_for({}));
    }

    // A rank that is alone needs NCCL only to scale.
    void join_alone() {
        if (comm_ != nullptr) return;
        ncclUniqueId id;
        check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId", rank_);
        join(id);
    }

    cudaStream_t stream_or_own(cudaStream_t stream) const {
        if (stream == cudaStreamPerThread || stream == cudaStreamLegacy)
            throw usage_error(rank_, text("hvd: the default streams can't be used on rank ", rank_,
                                          ": NCCL's own thread would use another; make a stream"));
        return stream == nullptr ? stream_.get() : stream;
    }

    // Makes `calls` as one group, in the order of the stream.
    template <class F>
    cuda_event enqueue(const char* label, cudaStream_t stream, time_point limit, F&& calls) {
        refuse_if_broken(label);
        const current_device here(device_, rank_);
        if (size_ == 1 && comm_ == nullptr) {
            nccl_calls none;
            calls(none);
        } else {
            nccl_calls made;
            check_nccl(ncclGroupStart(), "ncclGroupStart", rank_);
            calls(made);
            const ncclResult_t ended = ncclGroupEnd();
            if (made.failed()) fail(made.code(), made.api(), made.alone());
            if (ended != ncclSuccess && ended != ncclInProgress) fail(ended, "ncclGroupEnd", false);
            settle(ended, label, limit);
        }
        return guarded([&] { return cuda_event(stream, rank_); });
    }

    // Until the stream has come to `done`.
    void wait(const cuda_event& done, const char* label, time_point limit) {
        const current_device here(device_, rank_);
        backoff pauses(false);
        while (!reached(done)) {
            if (!pauses.pause()) continue;
            look_for_errors(label);
            if (now() > limit) expire(label);
        }
        refuse_if_broken(label);
    }

    bool test(const cuda_event& done, const char* label) {
        const current_device here(device_, rank_);
        if (!reached(done)) {
            look_for_errors(label);
            return false;
        }
        refuse_if_broken(label);
        return true;
    }

    // A sum of elements multiplied by `factor` on this rank; made once for each type and factor.
    template <class T>
    ncclRedOp_t scaled_sum(T factor, ncclDataType_t type, time_point limit) {
        for (const scale& s : scales_)
            if (s.type == type && s.factor == double(factor)) return s.op;
        if (size_ == 1) join_alone();
        const current_device here(device_, rank_);
        ncclRedOp_t op = ncclSum;
        settle(ncclRedOpCreatePreMulSum(&op, &factor, type, ncclScalarHostImmediate, comm_), "ncclRedOpCreatePreMulSum", limit);
        scales_.push_back({type, double(factor), op});
        return op;
    }

    // NCCL's own way from this communicator to another: `make(comm, &result, &config)`.
    template <class F>
    ncclComm_t derive(const char* api, F&& make) {
        const current_device here(device_, rank_);
        ncclConfig_t config = not_blocking();
        ncclComm_t result = nullptr;
        settle(make(comm_, &result, &config), api, limit_for({}));
        return result;
    }

    // Ends all calls under way; `why` is what further calls say.
    void give_up(std::string_view why) noexcept {
        if (!broken_.empty()) return;
        broken_ = why;
        if (comm_ == nullptr) return;
        const ncclResult_t revoked = ncclCommRevoke(comm_, NCCL_REVOKE_DEFAULT);
        if (revoked == ncclSuccess || revoked == ncclInProgress) return;
        ncclCommAbort(std::exchange(comm_, nullptr));
    }

    bool broken() const { return !broken_.empty(); }

    void refuse_if_broken(const char* label) const {
        if (broken()) [[unlikely]]
            throw peer_error(rank_, text("hvd: ", label, " on rank ", rank_, ": this communicator was given up after: ", broken_), {});
    }

private:
    struct scale {
        ncclDataType_t type;
        double factor;
        ncclRedOp_t op;
    };

    // Where CUDA fails, peers may still read this rank's tensors: ends all calls before the caller frees them.
    template <class F>
    auto guarded(F&& call) {
        try {
            return call();
        } catch (const cuda_error& e) {
            give_up(e.what());
            throw;
        }
    }

    bool reached(const cuda_event& done) {
        return guarded([&] { return done.reached(rank_); });
    }

    static ncclConfig_t not_blocking() {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        return config;
    }

    // Until NCCL has taken what was called.
    void settle(ncclResult_t code, const char* api, time_point limit, std::source_location where = std::source_location::current()) {
        backoff pauses(false);
        while (code == ncclInProgress) {
            if (comm_ == nullptr) return;
            const ncclResult_t asked = ncclCommGetAsyncError(comm_, &code);
            if (asked != ncclSuccess) fail(asked, "ncclCommGetAsyncError", false, where);
            if (code == ncclInProgress && pauses.pause() && now() > limit) expire(api);
        }
        if (code != ncclSuccess) fail(code, api, true, where);
    }

    void look_for_errors(const char* label) {
        refuse_if_broken(label);
        if (comm_ == nullptr) return;
        ncclResult_t state = ncclSuccess;
        const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
        if (asked != ncclSuccess) fail(asked, "ncclCommGetAsyncError", false);
        if (state != ncclSuccess && state != ncclInProgress) fail(state, label, false);
    }

    // An argument that NCCL refuses before it does anything is a matter of this rank alone.
    [[gnu::cold, noreturn]] void fail(ncclResult_t code, const char* api, bool before_anything,
                                      std::source_location where = std::source_location::current()) {
        try {
            if (code == ncclRemoteError)
                throw peer_error(rank_, text("hvd: ", api, " on rank ", rank_, ": another rank is gone: ", ncclGetErrorString(code)), {});
            throw_nccl_error(code, api, rank_, comm_, where);
        } catch (const error& e) {
            if (code != ncclInvalidArgument || !before_anything) give_up(e.what());
            throw;
        }
    }

    [[gnu::cold, noreturn]] void expire(const char* label) {
        const message what = text("hvd: ", label, " on rank ", rank_, ": other ranks did not come in time");
        give_up(what);
        throw peer_error(rank_, what, {});
    }

    void end() noexcept {
        if (comm_ == nullptr || !owned_) return;
        try {
            const current_device here(device_, rank_);
            if (!broken()) {
                settle(ncclCommFinalize(comm_), "ncclCommFinalize", now() + options_.destructor_deadline.nanoseconds());
                ncclCommDestroy(comm_);
                return;
            }
        } catch (...) {
        }
        if (comm_ != nullptr) ncclCommAbort(comm_);
    }

    communicator_options options_;
    int device_, rank_, size_;
    cuda_stream stream_;
    ncclComm_t comm_ = nullptr;
    bool owned_ = true;
    std::vector<scale> scales_;
    message broken_;  // why it was given up
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
