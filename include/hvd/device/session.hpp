// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <functional>
#include <memory>

#include "../core/options.hpp"
#include "../kernel/cuda/registry.hpp"
#include "../kernel/cuda/stop.hpp"
#include "../platform/clock.hpp"
#include "../platform/cuda_memory.hpp"
#include "../protocol/received_headers.hpp"
#include "call.hpp"
#include "options.hpp"
#include "query_limits.hpp"
#include "watcher.hpp"

namespace hvd::inline v0::detail {

// One rank's part of a communicator of device tensors, for every backend: its device, its stream,
// and the reason if it was given up. The communicator and all requests and plans hold it. The
// destructor of every derived class begins with stop_watching().
class device_session {
public:
    // `priority` is that of its stream, as CUDA counts: lower goes first.
    device_session(int rank, int size, int device, const communicator_options& options,
                   int priority = 0)
        : options_(options),
          rank_(rank),
          size_(size),
          device_(device),
          stream_((current_device(device, rank), rank), priority) {
        const current_device here(device, rank);
        load_kernels(rank);
    }
    device_session(const device_session&) = delete;
    device_session& operator=(const device_session&) = delete;
    virtual ~device_session() = default;

    // Held by a thread that uses the session's backend: a caller, or the watcher. A thread may hold
    // it several times.
    class inside {
    public:
        explicit inside(device_session& session) : session_(&session) { session.mutex_.lock(); }
        inside(const inside&) = delete;
        inside& operator=(const inside&) = delete;
        ~inside() { session_->mutex_.unlock(); }

    private:
        device_session* session_;
    };

    int rank() const { return rank_; }
    int size() const { return size_; }
    int device() const { return device_; }
    const communicator_options& options() const { return options_; }

    // Enqueues the calls, in their order, behind the stream's earlier work. The device is current.
    virtual void enqueue(std::span<const collective_call> calls, const char* label,
                         cudaStream_t stream, time_point limit) = 0;

    // Throws hvd::usage_error for a call that the backend can't make.
    virtual void check(const collective_call&, const char*) const {}

    // Names what keeps enqueued calls from becoming a part of a CUDA graph, or null.
    virtual const char* obstacle_to_capture() const { return "this backend"; }

    // Takes the place of a call that this rank refuses, where calls are compared: the peers make
    // the call, and learn of the refusal.
    virtual void post_refusal(const call_header&, time_point) {}

    // True if the ranks compare such calls, so that a refusal reaches those that make them.
    virtual bool compares(collective) const { return false; }

    // True if an alltoall may write over its input.
    virtual bool exchanges_in_place() const { return true; }

    // A session is a channel of protocol/agreement.hpp. Where a rank is alone nothing is exchanged.
    table<call_header> exchange_headers(const call_header& mine, time_point limit) {
        const inside turn(*this);
        refuse_if_broken("agreement");
        table<call_header> all(static_cast<std::size_t>(size()));
        copy_header(all[std::size_t(rank())], mine);
        if (size() > 1) gather_headers(all, limit);
        replace_other_bytes(all);
        return all;
    }

    // Ends all calls under way. Further calls throw `why`. Any thread may do it, inside.
    virtual void give_up(std::string_view why) noexcept {
        const inside turn(*this);
        if (broken()) return;
        for (const auto& stop : stops_)
            if (const auto word = stop.lock()) word->set();
        broken_ = text_or(no_memory_for_text, why);
        is_broken_.store(true);
    }

    // The same for a thread that finds another one inside, which waits for NCCL or for the device:
    // that one ends its call first.
    virtual void abort_calls() noexcept {
        is_aborted_.store(true);
        give_up("abort()");
    }

    // Ends the calls under way where no thread can be inside, since CUDA keeps the one that is.
    // That one gives the session up when it comes back: it is late.
    void cut_off(const char* label) noexcept {
        if (mutex_.try_lock()) {
            note_reason();
            give_up(lateness(label));
            mutex_.unlock();
        } else if (!is_cut_off_.exchange(true)) {
            end_kernels();
        }
    }

    // Makes give_up() set a word before it ends calls, for the launches behind them.
    virtual void stop_too(const std::shared_ptr<stop_word>& word) {
        const inside turn(*this);
        if (broken()) return word->set();
        std::erase_if(stops_, [](const auto& stop) { return stop.expired(); });
        stops_.push_back(word);
    }

    // Called inside, while the host or the watcher waits: throws the errors that have happened
    // meanwhile.
    virtual void look_for_errors(const char* label) { refuse_if_broken(label); }

    time_point limit_for(time_limit timeout) const {
        return limit_of(timeout.or_else(options_.timeout));
    }

    time_point destructor_limit() const { return now() + options_.destructor_timeout.nanoseconds; }

    // Makes a call of CUDA. If it fails, peers may still read this rank's tensors, so it ends all
    // calls before the caller frees them.
    template <class F>
    auto guarded(F&& call) {
        try {
            return call();
        } catch (const cuda_error& e) {
            give_up(e.what());
            throw;
        }
    }

    // The communicator's own stream, which does not wait for the default streams.
    cudaStream_t own_stream() const { return stream_.get(); }

    // The same, for others that may use it when this session has ended.
    cudaStream_t lend_stream() { return stream_.lend(); }

    // True if a call on this stream would become a part of a CUDA graph.
    bool is_captured(device_stream stream) const {
        return is_capturing(stream.given() ? stream.get() : own_stream(), rank_);
    }

    // Returns the stream on which a call runs, ordered after the work that it has to come after.
    // The own stream stands in for the stream of the calling thread: NCCL's thread would use
    // another.
    cudaStream_t enter(device_stream stream) {
        refuse_in_callback();
        if (stream.given() && stream.get() != cudaStreamPerThread) return stream.get();
        guarded([&] {
            if (stream.given()) follow(cudaStreamPerThread);
            else if (!is_captured(stream)) follow_default_streams();
        });
        return own_stream();
    }

    // Orders the stream's later work after the call.
    void leave(device_stream stream) {
        if (stream.get() != cudaStreamPerThread) return;
        guarded([&] {
            edge_.record(own_stream(), rank_);
            edge_.make_wait(stream.get(), rank_);
        });
    }

    // Returns an event that the stream reaches when everything enqueued is done.
    cuda_event mark(cudaStream_t stream) {
        return guarded([&] { return cuda_event(stream, rank_); });
    }

    // Waits until the stream has reached `done`.
    void wait(const cuda_event& done, const char* label, time_point limit) {
        const current_device here(device_, rank_);
        other_processes others_of_this_wait;
        backoff pauses(false, has_several_users_ ? others_of_this_wait : others_);
        query_limits::query query(queries_, label, limit, has_other_end());
        while (!reached(done, query)) {
            if (!pauses.pause()) continue;
            look(label, limit);
            if (is_late(limit)) expire(label);
        }
        refuse_if_ended(label, limit);
        refuse_if_cut_off(label);
    }

    // Waits for all work of the device, and looks for errors in it.
    void await_device(const char* label) {
        const current_device here(device_, rank_);
        guarded([&] { check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize", rank_); });
        look(label);
    }

    // Checks once, and throws as the wait does.
    bool test(const cuda_event& done, const char* label, time_point limit) {
        const current_device here(device_, rank_);
        query_limits::query query(queries_, label, limit, has_other_end());
        if (!reached(done, query)) {
            look(label, limit);
            if (is_late(limit)) expire(label);
            return false;
        }
        refuse_if_ended(label, limit);
        refuse_if_cut_off(label);
        return true;
    }

    // Makes the stream wait for `done`, which is watched if it has a limit. If this throws, it is
    // still the caller's.
    void hand_over(cuda_event& done, open_call& open, device_stream stream, const char* label,
                   time_point limit) {
        const current_device here(device_, rank_);
        refuse_to_follow(stream, label);
        done.make_wait(stream.given() ? stream.get() : own_stream(), rank_);
        if (limit != never) watcher_.add(std::move(done), std::move(open), label, limit);
        else watcher_.keep(std::move(done));
    }

    // Waits for the calls that only streams wait for, since they may use memory that is to be
    // freed. The caller is not inside: if a rank is missing, the watcher gives the session up.
    void await_streams(const char* label) noexcept {
        try {
            const current_device here(device_, rank_);
            const time_point limit = destructor_limit();
            query_limits::query query(queries_, label, limit);
            for (backoff pauses(false); !query.ask([&] { return watcher_.is_idle(); });)
                if (pauses.pause() && is_late(limit)) give_up(lateness(label));
            if (broken() && open_calls::of_this_thread().none()) cudaDeviceSynchronize();
        } catch (...) {
            give_up(what_of(std::current_exception()));
        }
    }

    // The call gets a callback, which the watcher runs when the stream has reached `done`.
    std::shared_ptr<watched_call> watch(cuda_event& done, const char* label, time_point limit) {
        return watcher_.add(done, label, limit);
    }
    // The same as hand_over() for such a call.
    void hand_over(const watched_call& call, open_call& open, device_stream stream,
                   const char* label) {
        follow(call.done, stream, label);
        watcher_.keep_open(call, std::move(open));
    }
    // A callback makes no calls and waits for none: the ranks would not make them in one order.
    void refuse_in_callback() const {
        if (session_of_callback == this) [[unlikely]]
            throw usage_error(rank_, text("hvd: a callback on rank ", rank_,
                                          " makes a call on the communicator whose call it is of, "
                                          "or waits for one"));
    }
    // Returns the failure of a call whose event is reached, or null.
    std::exception_ptr failure_of(const char* label, time_point limit) const noexcept {
        if (!broken() && !is_cut_off_.load()) return nullptr;
        try {
            refuse_if_ended(label, limit);
            throw_peer_error(true, rank_, lateness(label), {});
        } catch (...) {
            return std::current_exception();
        }
    }

    // The same for a call that somebody else goes on watching.
    void follow(const cuda_event& done, device_stream stream, const char* label) {
        const current_device here(device_, rank_);
        refuse_to_follow(stream, label);
        done.make_wait(stream.given() ? stream.get() : own_stream(), rank_);
    }

    // Gives the session up when this detector tells of an end, wherever the callers are.
    void listen_to(shared<failure_detector> detector) {
        listens_ = true;
        watcher_.listen_to(std::move(detector));
    }
    bool listens() const { return listens_; }
    // Throws if they have told of one.
    void stop_listening(const char* label) {
        watcher_.listen_to({});
        if (is_late(never)) expire(label);
        refuse_if_broken(label);
    }

    // Ends the watcher, which uses the whole session.
    void stop_watching() noexcept {
        watcher_.stop();
        queries_.stop();
    }

    // Gives the reason to end the calls under way, or an empty text. The thread that is inside one
    // asks. Several threads may wait for requests from then on. Called before the first call.
    virtual void end_calls_if(const std::function<message()>& reason) {
        reason_to_end_ = reason;
        has_several_users_ = true;
    }
    // Called inside, while a call waits.
    bool must_end(time_point limit) const {
        return is_late(limit) || (reason_to_end_ && !reason_to_end_().empty());
    }

    // True after the limit, and where another thread waits to give the communicator up.
    bool is_late(time_point limit) const {
        const bool must_end = watcher_.is_overdue() || is_cut_off_.load() || is_aborted_.load();
        return (must_end && !broken()) || now() > limit;
    }

    // For the watcher: looks for errors, unless a caller is inside, who does it.
    void look_from_outside() {
        if (!mutex_.try_lock()) return;
        const inside turn(*this);
        mutex_.unlock();
        const current_device here(device_, rank_);
        look_for_errors("a call that a stream waits for");
    }

    [[gnu::cold, noreturn]] void expire(const char* label) {
        const message what = lateness(label);
        const bool timed_out = note_reason();
        give_up(what);
        throw_peer_error(timed_out, rank_, what, {});
    }

    [[gnu::cold]] message reason_other_than_time() const {
        return is_aborted_.load()        ? message::fixed("abort()")
               : watcher_.has_detected() ? message::fixed("ranks are lost, or others come")
               : reason_to_end_          ? reason_to_end_()
                                         : message();
    }

    [[gnu::cold]] message lateness(const char* label) const {
        const message reason = reason_other_than_time();
        return text_or("hvd: other ranks did not come in time", "hvd: ", label, " on rank ", rank_,
                       ": ",
                       reason.empty() ? std::string_view("other ranks did not come in time")
                                      : std::string_view(reason));
    }

    // Allocates memory that the backend knows beforehand on all ranks. Allocating and freeing it
    // are collective. Not every backend has such memory. Who closes an arena is not inside.
    virtual std::span<std::byte> open_arena(std::size_t) { return {}; }
    virtual void close_arena(std::span<std::byte>) noexcept {}

    // Tensors in such memory are not packed.
    void add_arena(std::span<const std::byte> memory) { arenas_.push_back(memory); }
    void remove_arena(const std::byte* begin) {
        for (const auto& arena : arenas_)
            if (arena.data() == begin)
                std::erase_if(padding_, [&](const auto& p) { return lies_in(arena, p); });
        std::erase_if(arenas_, [&](const auto& arena) { return arena.data() == begin; });
    }
    bool in_arena(const std::byte* data, std::size_t bytes) const {
        for (const auto& arena : arenas_)
            if (lies_in(arena, {data, bytes})) return true;
        return false;
    }

    // Allocates the memory in which a plan packs its tensors. The device is current.
    virtual std::shared_ptr<std::byte> memory_for_plan(std::size_t bytes) {
        const auto memory = std::make_shared<cuda_memory>(cuda_memory::kind::device, bytes, rank_);
        return {memory, memory->data()};
    }

    // Called on all ranks once they have agreed on a plan, with its memory.
    virtual void share_memory(std::byte*, std::size_t, time_point) {}

    // Remembers bytes that belong to no tensor of an arena, so that a call may overwrite them.
    void add_padding(std::span<const std::byte> gap) { padding_.push_back(gap); }
    bool is_padding(std::span<const std::byte> gap) const {
        for (const auto& p : padding_)
            if (p.data() == gap.data() && p.size() == gap.size()) return true;
        return false;
    }

    bool broken() const { return is_broken_.load(); }

    void refuse_if_broken(const char* label) const {
        if (broken()) [[unlikely]]
            throw peer_error(rank_,
                             text("hvd: ", label, " on rank ", rank_,
                                  ": this communicator was given up after: ", broken_),
                             {});
    }

    // For the watcher's queries.
    query_limits& queries() { return queries_; }

protected:
    // Makes the kernels of calls under way end, while another thread is inside.
    virtual void end_kernels() noexcept {}

    // Calls may end before their limit.
    bool has_other_end() const { return listens_ || reason_to_end_ != nullptr; }

    // A call that was cut off looks complete, or fails.
    void refuse_if_cut_off(const char* label) {
        if (is_cut_off_.load() && !broken()) [[unlikely]]
            expire(label);
    }

    // Shows this rank's header, which is in its place, to all ranks, and fetches theirs.
    virtual void gather_headers(table<call_header>& all, time_point limit) = 0;

    // Allocates this rank's part of an arena, which may fail on one rank alone. The ranks agree on
    // the size.
    template <class F>
    void agree_on_arena(std::size_t bytes, F&& allocate) {
        call_header mine = agreement_header("device_arena");
        try {
            if (bytes > 0) allocate();
        } catch (const error& e) {
            mine.refuse(text("hvd: device_arena of ", bytes, " bytes: ", e.what()));
        }
        mine.content = bytes;
        agree_on(*this, mine, limit_for({}), [&](auto say) { say("bytes", text(bytes)); });
    }

private:
    // Returns true if the session is to be given up since a call is late, and for nothing else.
    [[gnu::cold]] bool note_reason() noexcept {
        const bool is_time = !broken() && reason_other_than_time().empty();
        if (is_time) has_timed_out_.store(true);
        return is_time;
    }

    // Throws if the session was given up while a call was under way: the call is late itself, or
    // ended with another one.
    void refuse_if_ended(const char* label, time_point limit) const {
        if (!broken()) [[likely]]
            return;
        if (has_timed_out_.load() && now() > limit)
            throw_peer_error(true, rank_, lateness(label), {});
        refuse_if_broken(label);
    }

    void cut_off_if_late(const char* label, time_point limit) noexcept {
        try {
            if (must_end(limit)) cut_off(label);
        } catch (...) {  // no memory for the reason: it asks again
        }
    }

    void refuse_to_follow(device_stream stream, const char* label) const {
        refuse_if_broken(label);
        if (is_captured(stream))
            throw usage_error(rank_, text("hvd: ", label, " on rank ", rank_,
                                          ": a stream that is being captured into a graph can't "
                                          "wait for a call outside of it"));
    }

    void look(const char* label, time_point limit = never) {
        const inside turn(*this);
        refuse_if_ended(label, limit);
        look_for_errors(label);
    }

    static bool lies_in(std::span<const std::byte> whole, std::span<const std::byte> part) {
        return part.data() >= whole.data() &&
               part.data() + part.size() <= whole.data() + whole.size();
    }

    // The legacy stream waits for those of the threads, so one of them is enough.
    void follow_default_streams() {
        for (const cudaStream_t other : {cudaStreamLegacy, cudaStreamPerThread})
            if (can_be_followed(other, rank_)) return follow(other);
    }

    // Orders the own stream's later work after what the other stream has been given.
    void follow(cudaStream_t other) {
        edge_.record(other, rank_);
        edge_.make_wait(own_stream(), rank_);
    }

    bool reached(const cuda_event& done, query_limits::query& query) {
        return query.ask([&] { return guarded([&] { return done.reached(rank_); }); });
    }

    communicator_options options_;
    int rank_, size_, device_;
    cuda_stream stream_;
    cuda_event edge_;  // between the own stream and a default stream
    std::vector<std::span<const std::byte>> arenas_, padding_;
    other_processes others_;
    recursive_mutex mutex_;
    std::vector<std::weak_ptr<stop_word>> stops_;
    std::function<message()> reason_to_end_;
    bool has_several_users_ = false, listens_ = false;
    message broken_;  // the reason for which it was given up; not changed once the next is true
    atomic<bool> is_broken_ = false, is_cut_off_ = false, is_aborted_ = false,
                 has_timed_out_ = false;
    query_limits queries_{[](void* self, const char* label, time_point limit) noexcept {
                              static_cast<device_session*>(self)->cut_off_if_late(label, limit);
                          },
                          this};
    device_watcher<device_session> watcher_{*this};
};

// The CUDA device that is current on this thread.
inline int device_of_this_thread(int rank) {
    int device = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice", rank);
    return device;
}

}  // namespace hvd::inline v0::detail
