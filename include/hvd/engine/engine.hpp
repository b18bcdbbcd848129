// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include "../comm/communicator.hpp"
#include "copying_reduction.hpp"
#include "named_calls.hpp"
#include "thread.hpp"
#include "unnamed_calls.hpp"

namespace hvd::inline v0 {

namespace detail {

// Gives code that does not know the backend the part of an engine that has no types.
struct engine_access {
    // Null after a move.
    template <class Engine>
    static shared<engine_core> core_of(const Engine& on) {
        return on ? on.parts_->core : shared<engine_core>();
    }
};

// The options that all ranks must give alike.
template <class F>
void each_compared(const engine_options& o, F f) {
    f("fusion_threshold", text(o.fusion_threshold));
    f("cycle_time", text(o.cycle_time.nanoseconds, " ns"));
    f("largest_first", text(o.largest_first ? "true" : "false"));
    f("cache_capacity", text(o.cache_capacity));
    f("prediction", text(o.prediction ? "true" : "false"));
    f("stall_warn", limit_text(o.stall_warn));
    f("stall_abort", limit_text(o.stall_abort));
    f("mean", text(o.mean == join_mean::of_all ? "of_all" : "of_contributors"));
}

// Calls that an engine has for tensors of the host only.
template <class Backend, class X>
constexpr bool is_on_host = flaw_of_tensor<Backend, X, tensor_use::read>() != tensor_flaw::space;

template <class Backend, class X>
constexpr bool check_on_host() {
    static_assert(is_on_host<Backend, X>,
                  "hvd: an engine has for tensors of devices allreduce, allgather, broadcast, "
                  "reduce_scatter and alltoall with counts and hvd::into(out); for this call take "
                  "the communicator of the device");
    return is_on_host<Backend, X>;
}

// The engine's own communicator, on which nobody else makes calls.
template <class Comm>
Comm duplicate_for_engine(Comm& comm, const engine_options& options) {
    auto& session = static_cast<call_driver&>(access::session_of(comm));
    const int me = comm.rank();
    const auto refuse = [&](const message& why) { refuse_call(session, "an engine: ", why); };
    if (options.cycle_time.nanoseconds < 0) refuse(negative_time("cycle_time", options.cycle_time));
    if (options.stall_warn.is_wrong()) refuse(wrong_limit("stall_warn", options.stall_warn));
    if (options.stall_abort.is_wrong()) refuse(wrong_limit("stall_abort", options.stall_abort));
    if (!session.threaded())
        throw usage_error(me, text("hvd: rank ", me,
                                   ": an engine makes calls in a thread of its "
                                   "own, and this backend allows none: MPI needs the level "
                                   "MULTIPLE, which hvd::mpi_environment asks for"));
    agree_on_values(session, "the options of an engine", never, [&](auto tell) {
        each_compared(options, [&](std::string_view name, const message& value) {
            tell(name, std::string_view(value));
        });
    });
    Comm own = own_duplicate(comm);
    access::session_of(own).question = session.question;
    store(static_cast<call_driver&>(access::session_of(own)).record().head.label, "engine");
    return own;
}

}  // namespace detail

/// Matches tensors by name: any thread submits them, in any order. Horovod's dynamic half.
///
/// A tensor is reduced once all ranks have submitted it under its name. Ranks negotiate only while
/// the set of tensors changes: a step that has repeated is predicted, and then runs without a
/// message of its own inside a node. Small tensors travel together. Nothing happens, and no thread
/// runs, while nothing is submitted.
///
/// **Collective**: all ranks make the engine, with equal options. It works on a duplicate of the
/// communicator. Process sets are engines of their own, on `comm.subset(…)`; they run side by side.
/// **Buffers** of a tensor stay untouched until its request is complete.
/// **Threads**: all functions may be called by any thread at any time. Units run on the engine's
/// thread, or on one that waits for a request.
/// **Errors**: if ranks disagree about a tensor, its requests throw `hvd::mismatch_error` on all of
/// them, with every rank's value; other tensors go on. A wrong call throws `hvd::usage_error` at
/// once, and its peers `hvd::peer_error` with the reason. So does a rank without memory for a
/// tensor, with `std::bad_alloc`. A rank that leaves, dies or fails ends the engine on all ranks:
/// their requests throw `hvd::peer_error` with its rank and reason.
/// The destructor waits for tensors in flight until the communicator's `destructor_timeout` at
/// most. The engine is movable, and empty after a move.
/// @tparam Backend a backend whose calls may run on another thread (MPI: at level MULTIPLE).
/// @tparam Devices the backend of the device tensors, for which see hvd/engine_device.hpp.
/// @snippet tests/docs/snippets.cpp named_tensors
template <class Backend, class Devices = void>
class [[nodiscard("hvd: an engine works until it is destroyed")]] engine
    : private detail::unnamed_calls {
public:
    using backend_type = Backend;
    static constexpr bool matches_by_name = true;

    /// @throws hvd::usage_error for options that can't work or a backend below MULTIPLE,
    /// hvd::mismatch_error if options differ, hvd::peer_error if the ranks do not find each other
    /// within 30 s, or the communicator's timeout if that is longer.
    [[nodiscard("hvd: an engine works until it is destroyed")]]
    explicit engine(communicator<Backend>& comm, const engine_options& options = {})
        : engine(comm, options, detail::device_units()) {}

    engine(engine&&) noexcept = default;
    engine& operator=(engine&&) noexcept;
    ~engine();

    /// True unless the engine was moved from.
    explicit operator bool() const noexcept { return parts_ != nullptr; }
    int rank() const noexcept { return !parts_ ? -1 : parts_->core->rank(); }
    int size() const noexcept { return !parts_ ? 0 : parts_->core->size(); }
    int local_size() const noexcept { return !parts_ ? 0 : parts_->data.local_size(); }

    using unnamed_calls::allgather, unnamed_calls::allreduce, unnamed_calls::alltoall,
        unnamed_calls::broadcast, unnamed_calls::gather, unnamed_calls::reduce,
        unnamed_calls::reduce_scatter, unnamed_calls::scatter;

    /// Reduces `x` in place over all ranks, as `communicator::allreduce` does. The tensors of a
    /// `fuse(…)` are a group: they go together, or none of them does.
    /// @throws hvd::usage_error if the name is empty or in flight already.
    template <class X, class Op = reduce_options>
    [[nodiscard]] request allreduce(std::string_view name, X&& x, const Op& op = {},
                                    const named_options& o = {}) {
        static_assert(!std::is_same_v<Op, op::adasum>,
                      "hvd: an engine has no adasum: use a distributed optimizer");
        auto named = calls(name, o);
        return named.allreduce_async(named.list_of(x), op, reduced(o));
    }
    /// Reduces `in` into the caller's memory: `allreduce(name, in, into(out), op)`. `out` has as
    /// many elements, and may be written without `into`. `in` is read before the function returns.
    template <class In, class Out, class Op>
        requires(!std::convertible_to<Op, named_options> && !detail::operation_like<Out>)
    [[nodiscard]] request allreduce(std::string_view name, const In& in, Out&& out, const Op& op,
                                    const named_options& o = {}) {
        using namespace detail;
        if constexpr (check_unfused<In, Out>() && check_tensor<Backend, const In&>() &&
                      check_tensor<Backend, Out, tensor_use::written>() &&
                      check_reduced<Backend, const In&, Op>()) {
            static_assert(std::is_same_v<element_of<const In&>, element_of<Out>>,
                          "hvd: input and output have different element types");
            auto named = calls(name, o);
            auto list = named.list_of(out);
            return start_call(named, collective::allreduce, reduced(o), [&] {
                return copying_reduction<decltype(list), Op>(list, to_view(in), to_view(out), op,
                                                             reduced(o));
            });
        }
        return {};
    }

    template <class In, class View, class Op>
    [[nodiscard]] request allreduce(std::string_view name, const In& in, const into_view<View>& out,
                                    const Op& op, const named_options& o = {}) {
        return allreduce(name, in, out.view, op, o);
    }

    /// Gathers all ranks' tensors, as `communicator::allgather` does. The result is `gathered<T>`,
    /// for a `fuse(…)` a tuple of them; with `into(out)` the caller's memory is filled.
    template <class X, class... Into>
    [[nodiscard]] auto allgather(std::string_view name, X&& x, const named_options& o = {}) {
        return calls(name, o).allgather_async(std::forward<X>(x), plain(o));
    }
    template <class X, class View>
    [[nodiscard]] request allgather(std::string_view name, X&& x, const into_view<View>& out,
                                    const named_options& o = {}) {
        return calls(name, o).allgather_async(std::forward<X>(x), out, plain(o));
    }

    /// Gives every rank the root's `x`.
    template <class X>
    [[nodiscard]] request broadcast(std::string_view name, X&& x, root r = root{0},
                                    const named_options& o = {}) {
        return calls(name, o).broadcast_async(std::forward<X>(x), r, plain(o));
    }

    /// Reduces `x` and gives each rank its slice.
    template <class X, class Op = reduce_options>
    [[nodiscard]] auto reduce_scatter(std::string_view name, X&& x, const Op& op = {},
                                      const named_options& o = {}) {
        return calls(name, o).reduce_scatter_async(std::forward<X>(x), op, reduced(o));
    }
    template <class X, class Op, class View>
    [[nodiscard]] request reduce_scatter(std::string_view name, X&& x, const Op& op,
                                         const into_view<View>& out, const named_options& o = {}) {
        return calls(name, o).reduce_scatter_async(std::forward<X>(x), op, out, reduced(o));
    }

    /// Sends `counts[p]` elements of `x` to each rank p; without counts equal shares, also of each
    /// tensor of a `fuse(…)`. With `into(out)` the caller's memory is filled.
    template <class X, class Counts>
        requires detail::is_range<const Counts>
    [[nodiscard]] auto alltoall(std::string_view name, X&& x, const Counts& counts,
                                const named_options& o = {}) {
        if constexpr (detail::check_on_host<Backend, X>())
            return calls(name, o).alltoall_async(std::forward<X>(x), counts, plain(o));
        else return detail::refused_call();
    }
    template <class X, class Counts, class View>
        requires detail::is_range<const Counts>
    [[nodiscard]] request alltoall(std::string_view name, X&& x, const Counts& counts,
                                   const into_view<View>& out, const named_options& o = {}) {
        return calls(name, o).alltoall_async(std::forward<X>(x), counts, out, plain(o));
    }
    template <class X>
    [[nodiscard]] auto alltoall(std::string_view name, X&& x, const named_options& o = {}) {
        if constexpr (detail::check_on_host<Backend, X>())
            return calls(name, o).alltoall_async(std::forward<X>(x), plain(o));
        else return detail::refused_call();
    }
    template <class X, class View>
    [[nodiscard]] request alltoall(std::string_view name, X&& x, const into_view<View>& out,
                                   const named_options& o = {}) {
        if constexpr (detail::check_on_host<Backend, X>())
            return calls(name, o).alltoall_async(std::forward<X>(x), out, plain(o));
        else return request();
    }

    /// Reduces `x`, also a `fuse(…)`, in place on the root, as `communicator::reduce` does.
    template <class X, class Op = reduce_options>
    [[nodiscard]] request reduce(std::string_view name, X&& x, const Op& op = {}, root r = root{0},
                                 const named_options& o = {}) {
        if constexpr (detail::check_on_host<Backend, X>())
            return calls(name, o).reduce_async(std::forward<X>(x), op, r, reduced(o));
        else return request();
    }

    /// Gives the root all ranks' tensors, as `communicator::gather` does: `gathered<T>`, for a
    /// `fuse(…)` a tuple of them; with `into(out)` the root's memory is filled.
    template <class X>
    [[nodiscard]] auto gather(std::string_view name, X&& x, root r = root{0},
                              const named_options& o = {}) {
        if constexpr (detail::check_on_host<Backend, X>())
            return calls(name, o).gather_async(std::forward<X>(x), r, plain(o));
        else return detail::refused_call();
    }
    template <class X, class View>
    [[nodiscard]] request gather(std::string_view name, X&& x, const into_view<View>& out,
                                 root r = root{0}, const named_options& o = {}) {
        if constexpr (detail::check_on_host<Backend, X>())
            return calls(name, o).gather_async(std::forward<X>(x), out, r, plain(o));
        else return request();
    }

    /// Splits the root's `x`, or each tensor of its `fuse(…)`, among the ranks, as
    /// `communicator::scatter` does.
    template <class X>
    [[nodiscard]] auto scatter(std::string_view name, X&& x, root r = root{0},
                               const named_options& o = {}) {
        if constexpr (detail::check_on_host<Backend, X>())
            return calls(name, o).scatter_async(std::forward<X>(x), r, plain(o));
        else return detail::refused_call();
    }
    template <class X, class View>
    [[nodiscard]] request scatter(std::string_view name, X&& x, const into_view<View>& out,
                                  root r = root{0}, const named_options& o = {}) {
        if constexpr (detail::check_on_host<Backend, X>())
            return calls(name, o).scatter_async(std::forward<X>(x), out, r, plain(o));
        else return request();
    }

    /// The request is complete when all ranks have submitted a barrier of that name.
    [[nodiscard]] request barrier(std::string_view name = "barrier", const named_options& o = {}) {
        return calls(name, o).barrier_async(plain(o));
    }

    /// This rank has no more data. Until all ranks have joined, it takes part in the calls of
    /// others with elements that change no result: in a sum, average, min, max and product with
    /// the neutral one, in an allgather with no rows, in a broadcast and a barrier without a word.
    /// The mean is that of `engine_options::mean`. Other collectives, a broadcast whose root has
    /// joined, and operations that this rank can't know are refused on all ranks. The result is
    /// the rank that was the last to join; then all ranks are back. Horovod: `join`.
    /// @snippet tests/docs/snippets.cpp engine_join
    [[nodiscard]] result<int> join();

    /// Gives the engine other thresholds, between steps. All ranks take them, or none does and all
    /// throw. A step that was predicted is learned once more. **Collective**, with the same
    /// thresholds and nothing in flight on any rank.
    /// @throws hvd::usage_error for a value outside its range, and if tensors of this rank are in
    /// flight, which go on; hvd::mismatch_error if the ranks give different values; hvd::peer_error
    /// if another rank refuses, or has joined.
    /// @snippet tests/docs/snippets.cpp engine_retune
    void retune(const engine_tuning& to);
    /// The thresholds in force.
    engine_tuning tuned() const { return parts_or_throw().core->tuned(); }

    /// This rank has no tensor of that name. The others' requests throw `hvd::peer_error` with this
    /// rank and the reason, once they have submitted it; the engine goes on.
    /// @snippet tests/docs/snippets.cpp engine_refuse
    void refuse(std::string_view name, std::string_view why) { calls(name, {}).refuse(why); }

    /// Ends the engine on all ranks: their requests throw `hvd::peer_error` with this rank and the
    /// text of the exception. Call it in a handler, before the exception leaves the rank.
    void fail(const std::exception_ptr& why);

    /// The counts of this rank since the engine was made. **Threads**: any, at any time. With
    /// `hvd/statistics.hpp` they become text, JSON or a file for Prometheus.
    /// @snippet tests/docs/snippets.cpp engine_statistics
    engine_statistics statistics() const { return parts_or_throw().core->statistics(); }

    /// The observer of the engine's own communicator, if that of the constructor has one: it sees
    /// the units, not the tensors. Read it while no tensor is in flight.
    auto& observer() const
        requires requires { typename Backend::observer_type; }
    {
        return parts_or_throw().data.observer();
    }

    /// Resumes, on this thread, coroutines that wait for requests that are complete. It returns
    /// their number.
    std::size_t run_ready();

protected:
    friend struct detail::engine_access;

    // An engine that runs tensors of devices as well.
    engine(communicator<Backend>& comm, const engine_options& options,
           detail::device_units devices);
    detail::engine_core& core() const { return *parts_or_throw().core; }

private:
    struct parts;

    parts& parts_or_throw() const {
        if (!parts_) throw usage_error(-1, "hvd: this engine is empty: it was moved from");
        return *parts_;
    }

    detail::named_calls<Backend> calls(std::string_view name, const named_options& o) const {
        return {*parts_or_throw().core, name, o};
    }
    static hvd::options plain(const named_options& o) { return {.timeout = o.timeout}; }
    static reduce_options reduced(const named_options& o) {
        return {.prescale = o.prescale, .postscale = o.postscale, .timeout = o.timeout};
    }

    std::unique_ptr<parts> parts_;
};

}  // namespace hvd::inline v0

#include "engine_bodies.hpp"
