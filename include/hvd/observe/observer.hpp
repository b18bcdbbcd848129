// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "../core/dtype.hpp"
#include "data_path.hpp"

namespace hvd::inline v0 {

/// The data that an observer receives about a collective. The texts are valid only during the call.
struct event {
    std::string_view collective;  ///< "allreduce", "broadcast", …
    std::string_view name;        ///< from the call's options
    dtype id;                     ///< element type
    std::size_t bytes;            ///< the bytes that this rank contributes
    int rank;
    int size;
    std::int64_t time;  ///< time on the steady clock, in nanoseconds
    /// when an asynchronous call was made, which waited for its turn, or a tensor was submitted
    /// to an engine; 0 for a blocking call
    std::int64_t made = 0;
    /// at the end: the size of the call as nccl-tests counts it, which is that of all ranks for an
    /// allgather and a gather, and `bytes` for others
    std::size_t total_bytes = 0;
    data_path path = data_path::none;  ///< at the end of a call that succeeded
    bool on_device = false;            ///< a tensor of a device that was submitted to an engine
    /// of such a tensor that is complete: when it was ready, and when its work was enqueued; else 0
    std::int64_t ready = 0, enqueued = 0;
    /// for `on_arrivals`: the time that each rank has spent in the call, in nanoseconds
    const std::int64_t* took = nullptr;
};

/// A part of a call, which lasts until the next one begins or the call ends.
enum class phase : std::uint8_t {
    pack,         ///< tensors are copied into one buffer
    communicate,  ///< ranks exchange data; every call begins with it
    unpack,       ///< results are copied out of the buffer
};

/// Receives events and never calls back. `on_begin` is called when a collective starts to move
/// data, `on_end` when it ends or fails. Both run on the thread that runs the collective, one at a
/// time per communicator.
///
/// If `on_begin` throws, the call is refused: this rank throws the exception, and its peers
/// `hvd::peer_error` with the text. An exception of `on_end` is thrown when the call is complete,
/// or ignored if the call has failed. The communicator works on.
///
/// An observer may have further functions. One that it does not have costs nothing:
/// - `on_phase(event, phase)`: a phase of the call begins. Calls that pack nothing have one phase
///   and tell none.
/// - `on_arrivals(event)`: `event.took[r]` is how long rank r was in the call before this one, for
///   all `event.size` ranks. Whoever came last has the least, and the others have waited for it
///   for the difference. The event has the name and the collective of that call. It is told of
///   calls in which all ranks wait for all, and not of messages, roots, and calls that have failed.
///   Each rank knows that of all others, since the headers of calls carry it. In an engine a unit
///   begins with the last of its tensors that the rank has submitted. It is called before `on_end`.
/// - `on_counts(event, std::string_view names, const std::int64_t* values)`: numbers that change
///   with time, as samples that are ready in a stage of a `data::loader`. `event.name` says whose
///   they are, and commas part the names.
/// - `on_split(observer& parent)`: the communicator was made from another one, whose observer is
///   `parent`, by `split`, `subset`, `local`, `cross`, or for an engine. Each communicator has an
///   observer of its own. Without `on_split` the two know nothing of each other.
///
/// An engine works on a duplicate of its communicator. The observer of the duplicate, which
/// `engine::observer()` returns, is told of the engine's tensors by these functions. That of the
/// communicator learns of them only if `on_split` joins the two. The name of the event is that of
/// the tensor.
/// - `on_submitted(event)`: this rank has submitted a tensor. Any thread calls it, one at a time.
/// - `on_rank_ready(event, int rank)`: another rank has submitted it, with those that report to it.
///   Only ranks that others report to know that, while they negotiate. The event has the name, but
///   neither collective nor bytes. The engine's thread calls it.
/// - `on_ready(event)`: all ranks have submitted it, and it runs now. A tensor of a predicted step
///   needs nobody's word: its time is that of the submission. If a rank declines the prediction, it
///   is told once more.
/// - `on_complete(event, bool succeeded)`: the tensor is complete. A tensor that was never ready
///   may end without it. A tensor of a device (`event.on_device`) is complete when its work is
///   done. A thread that looks for that calls the function, also while another tensor of the name
///   is under way.
/// The first two, and `on_complete` for tensors of devices, may be called while another thread is
/// inside another function. None may throw.
template <class O>
concept observer = std::default_initializable<O> && requires(O& o, const event& e, bool succeeded) {
    o.on_begin(e);
    o.on_end(e, succeeded);
};

namespace detail {

template <class O>
concept observes_phases = requires(O& o, const event& e) { o.on_phase(e, phase::pack); };
template <class O>
concept observes_submissions = requires(O& o, const event& e) { o.on_submitted(e); };
template <class O>
concept observes_ranks = requires(O& o, const event& e) { o.on_rank_ready(e, 0); };
template <class O>
concept observes_readiness = requires(O& o, const event& e) { o.on_ready(e); };
template <class O>
concept observes_completion = requires(O& o, const event& e) { o.on_complete(e, true); };

template <class O>
concept observes_arrivals = requires(O& o, const event& e) { o.on_arrivals(e); };

template <class O>
concept observes_counts = requires(O& o, const event& e, const std::int64_t* values) {
    o.on_counts(e, std::string_view(), values);
};

template <class O>
concept observes_splits = requires(O& o) { o.on_split(o); };

}  // namespace detail

}  // namespace hvd::inline v0
