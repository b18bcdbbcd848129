// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdlib>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>

#include "../backend/collectives.hpp"
#include "../backend/link_transport.hpp"
#include "../detail/fork_guard.hpp"
#include "../detail/thread.hpp"
#include "../observe/observer.hpp"
#include "request.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

struct no_observer {};

template <class B>
struct observer_of { using type = no_observer; };
template <class B>
    requires requires { typename B::observer_type; }
struct observer_of<B> { using type = typename B::observer_type; };

template <class B>
constexpr bool agrees_on_names = [] {
    if constexpr (requires { B::agrees_on_names; }) return bool(B::agrees_on_names);
    else return false;
}();

template <class L>
constexpr bool always_shares_node = [] {
    if constexpr (requires { L::always_shares_node; }) return bool(L::always_shares_node);
    else return false;
}();

template <class L>
constexpr bool may_share_node = requires(L& l) { l.area(); };

template <class B>
class session;

// An asynchronous collective in the queue of its communicator.
template <class B>
class queued : public pending {
public:
    operation* op = nullptr;  // lives in the class derived from this one
    time_point limit = time_point::max();
    std::shared_ptr<session<B>> owner;

    bool test() override { return owner->test(*this); }
    void wait() override { owner->wait(*this); }
    void resume_later(std::coroutine_handle<> waiter) override { owner->add_waiter(waiter, *this); }
    void run_ready() override { owner->run_ready(); }
    void leave_unseen(std::exception_ptr failure) noexcept override { owner->set_unseen(std::move(failure)); }
};

// What one rank keeps of one communicator: its link, its transport and the order of its calls.
template <class B>
class session : public std::enable_shared_from_this<session<B>> {
public:
    using link_type = typename B::link_type;
    using call_pointer = std::shared_ptr<queued<B>>;

    session(std::unique_ptr<link_type> link, const communicator_options& options)
        : link_(std::move(link)), options_(options), work_(link_->size()),
          may_spin_(link_->size() <= processors()) {
        if constexpr (may_share_node<link_type>) {
            if (const auto* area = link_->area()) node_.emplace(*area, link_->rank(), driver_);
        }
        if constexpr (!always_shares_node<link_type>) {
            if (!on_node()) remote_.emplace(*link_, driver_);
        }
    }

    ~session() { close("communicator destroyed"); }

    int rank() const noexcept { return link_->rank(); }
    int size() const noexcept { return link_->size(); }
    link_type& link() noexcept { return *link_; }
    workspace& work() noexcept { return work_; }
    auto& observer() noexcept { return observer_; }
    const communicator_options& options() const noexcept { return options_; }
    int next_context() noexcept { return ++contexts_; }
    std::uint64_t next_plan() noexcept { return ++plans_; }

    // A blocking call, after all that were made before it.
    void run(operation& op, std::chrono::nanoseconds deadline) {
        admit(op);
        drain();
        throw_unseen();
        execute(op, limit_for(deadline));
    }

    // An asynchronous call; the queue keeps it until it is complete.
    void start(const call_pointer& call, std::chrono::nanoseconds deadline) {
        admit(*call->op);
        throw_unseen();
        call->owner = this->shared_from_this();
        call->limit = limit_for(deadline);
        {
            const std::lock_guard lock(mutex_);
            queue_.push_back(call);
        }
        asynchronous_ = true;
        if (!progress_thread()) return;
        work_count_.fetch_add(1, std::memory_order_release);
        work_count_.notify_one();
    }

    bool test(queued<B>& call) {
        if (worker_ || call.done()) return call.done();
        while (!call.done()) {
            const call_pointer head = front();
            if constexpr (runs_whole) {
                finish(*head);
                continue;
            }
            if (!current_) begin(head);
            if (!advance_current(*head)) return false;
        }
        return true;
    }

    void wait(queued<B>& call) {
        if (worker_) {
            call.wait_done();
            return;
        }
        while (!call.done()) finish_head();
    }

    void add_waiter(std::coroutine_handle<> waiter, const queued<B>& call) {
        waiters_.emplace_back(waiter, &call);
    }

    // Resumes coroutines whose calls are complete, on this thread.
    std::size_t run_ready() {
        std::size_t resumed = 0;
        for (bool found = true; found;) {
            found = false;
            for (std::size_t i = 0; i < waiters_.size(); ++i) {
                auto [handle, call] = waiters_[i];
                if (!call->done() && !const_cast<queued<B>*>(call)->test()) continue;
                waiters_.erase(waiters_.begin() + std::ptrdiff_t(i));
                handle.resume();
                ++resumed;
                found = true;
                break;
            }
        }
        return resumed;
    }

    void set_unseen(std::exception_ptr failure) noexcept {
        if (!unseen_) unseen_ = std::move(failure);
    }

    // Ends the calls under way within the destructor's deadline, and tells the peers.
    void close(std::string_view reason) noexcept {
        if (closed_) return;
        closed_ = true;
        driver_.stop.store((now() + options_.destructor_deadline).time_since_epoch().count(), std::memory_order_relaxed);
        try {
            drain();
        } catch (...) {
        }
        if (worker_) {
            stopping_.store(true, std::memory_order_release);
            work_count_.fetch_add(1, std::memory_order_release);
            work_count_.notify_one();
            worker_.join();
        }
        leave(reason);
    }

    void leave(std::string_view reason) noexcept {
        if (node_) node_->leave(reason);
        else if constexpr (!always_shares_node<link_type>) remote_->leave(reason);
    }

private:
    static constexpr bool direct = always_shares_node<link_type>;
    // A link that has whole collectives of its own.
    static constexpr bool runs_whole = requires(link_type& l, operation& op, workspace& w) { l.run(op, w); };

    bool on_node() const { return node_.has_value(); }

    void admit(operation& op) {
        if (fork_.in_child())
            throw usage_error(rank(), text("hvd: ", op.entry.label(), " in a process forked from rank ", rank(),
                                           ": a communicator belongs to the process that made it"));
        refuse_if_broken(op);
        if constexpr (agrees_on_names<B>)
            op.entry.content = hash().add(op.entry.content).add(std::string_view(op.entry.name)).value();
    }

    void refuse_if_broken(const operation& op) const {
        if (!is_broken_.load(std::memory_order_acquire)) return;
        throw peer_error(rank(), text("hvd: ", op.entry.label(), " on rank ", rank(),
                                      ": this communicator was given up after: ", broken_), {});
    }

    time_point limit_for(std::chrono::nanoseconds deadline) const {
        if (deadline.count() == 0) deadline = options_.deadline;
        return deadline.count() == 0 ? time_point::max() : now() + deadline;
    }

    void throw_unseen() {
        if (unseen_) std::rethrow_exception(std::exchange(unseen_, nullptr));
    }

    task make_task(operation& op) {
        if constexpr (direct) {
            return start_collective(*node_, work_, op);
        } else {
            if (on_node()) return start_collective(*node_, work_, op);
            return start_collective(*remote_, work_, op);
        }
    }

    void execute(operation& op, time_point limit) {
        prepare(op);
        std::exception_ptr failure;
        if constexpr (runs_whole) {
            try {
                link_->run(op, work_);
            } catch (...) {
                failure = std::current_exception();
            }
        } else {
            task work = make_task(op);
            drive(driver_, work, may_spin_, limit);
            failure = work.failure();
        }
        conclude(op, failure);
        if (failure) std::rethrow_exception(failure);
    }

    void prepare(operation& op) {
        if constexpr (observes) observer_.on_begin(event_of(op));
        if (op.pack != nullptr && op.in == nullptr) {
            if (work_.buffer.size() < op.buffer_bytes) work_.buffer.resize(op.buffer_bytes);
            op.in = op.out = work_.buffer.data();
        }
    }

    void conclude(operation& op, const std::exception_ptr& failure) {
        if (!failure && op.unpack != nullptr && !op.only_agree) op.unpack(op.self, op);
        if constexpr (observes) observer_.on_end(event_of(op), failure == nullptr);
        if (!std::exchange(driver_.lost, false)) return;
        try {
            std::rethrow_exception(failure);
        } catch (const std::exception& e) {
            broken_ = e.what();
        } catch (...) {
            broken_ = "unknown exception";
        }
        is_broken_.store(true, std::memory_order_release);
        leave(broken_);
    }

    static constexpr bool observes = !std::is_same_v<typename observer_of<B>::type, no_observer>;

    event event_of(const operation& op) const {
        return {collective_names[std::size_t(op.entry.kind)], std::string_view(op.entry.name), op.entry.id,
                std::size_t(op.entry.count) * op.element_bytes, rank(), size(), now()};
    }

    // The thread that makes asynchronous calls go on; without one, wait() and test() do.
    bool progress_thread() {
        if (worker_) return true;
        if constexpr (requires { { link_->threaded() } -> std::convertible_to<bool>; }) {
            if (link_->threaded() && !current_) worker_ = thread([this] { serve(); });
        }
        return bool(worker_);
    }

    void serve() {
        for (std::uint64_t seen = 0; !stopping_.load(std::memory_order_acquire);) {
            if (const call_pointer head = front()) {
                finish(*head);
                continue;
            }
            const std::uint64_t count = work_count_.load(std::memory_order_acquire);
            if (count == seen) work_count_.wait(count, std::memory_order_acquire);
            seen = count;
        }
    }

    call_pointer front() {
        const std::lock_guard lock(mutex_);
        return queue_.empty() ? nullptr : queue_.front();
    }

    void finish(queued<B>& call) {
        std::exception_ptr failure;
        try {
            refuse_if_broken(*call.op);
            execute(*call.op, call.limit);
        } catch (...) {
            failure = std::current_exception();
        }
        pop(std::move(failure));
    }

    void pop(std::exception_ptr failure) {
        call_pointer head;
        {
            const std::lock_guard lock(mutex_);
            head = std::move(queue_.front());
            queue_.pop_front();
        }
        head->finish(std::move(failure));
        // The owner is not dropped here: the last handle to a session must not die on its own thread.
    }

    // Without a progress thread: the first call in the queue, a step at a time or to its end.
    void begin(const call_pointer& head) {
        prepare(*head->op);
        current_.emplace(make_task(*head->op));
        current_->start();
    }

    bool advance_current(queued<B>& head) {
        if (!current_->done()) {
            if (driver_.ready(driver_.context)) driver_.leaf.resume();
            else if (driver_.hopeless(driver_.context)) give_up(verdict::hopeless);
            else if (now() > head.limit) give_up(verdict::expired);
        }
        if (!advance(driver_, *current_)) return false;
        complete_current(head);
        return true;
    }

    void give_up(verdict v) {
        driver_.verdict = v;
        driver_.leaf.resume();
    }

    void complete_current(queued<B>& head) {
        std::exception_ptr failure = current_->failure();
        current_.reset();
        conclude(*head.op, failure);
        pop(std::move(failure));
    }

    void finish_head() {
        const call_pointer head = front();
        if (!current_) return finish(*head);
        drive_on(driver_, *current_, may_spin_, head->limit);
        complete_current(*head);
    }

    // A blocking call comes after all asynchronous ones made before it.
    void drain() {
        if (!asynchronous_) return;
        if (!worker_) {
            while (front()) finish_head();
            return;
        }
        call_pointer last;
        {
            const std::lock_guard lock(mutex_);
            if (queue_.empty()) return;
            last = queue_.back();
        }
        last->wait_done();
    }

    std::unique_ptr<link_type> link_;
    communicator_options options_;
    fork_guard fork_;
    detail::driver driver_;
    workspace work_;
    bool may_spin_;
    std::optional<node_transport<direct>> node_;
    std::optional<typename link_transport_for<link_type>::type> remote_;
    [[no_unique_address]] typename observer_of<B>::type observer_;

    std::string broken_;  // why; written once, before the flag
    std::atomic<bool> is_broken_{false};
    std::exception_ptr unseen_;
    int contexts_ = 0;
    std::uint64_t plans_ = 0;
    bool closed_ = false;

    std::mutex mutex_;
    std::deque<call_pointer> queue_;
    std::optional<task> current_;
    std::vector<std::pair<std::coroutine_handle<>, const queued<B>*>> waiters_;
    bool asynchronous_ = false;
    std::atomic<bool> stopping_{false};
    std::atomic<std::uint64_t> work_count_{0};
    thread worker_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
