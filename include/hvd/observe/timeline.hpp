// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <algorithm>
#include <memory>

#include "lateness.hpp"
#include "observer.hpp"
#include "trace_recorder.hpp"

namespace hvd::inline v0 {

/// An observer that writes a trace for Perfetto or Chrome:
/// `hvd::communicator<hvd::observed<hvd::mpi, hvd::timeline>>`.
///
/// Every rank has a file. `start_timeline` and `stop_timeline` begin and end it; until then the
/// observer costs a few instructions a call. Communicators that are made of this one, and engines,
/// write to the same file. Calls have the phases queue, pack, communicate and unpack; the tensors
/// of an engine also negotiate, with a mark for each rank that is known to be ready. `hvd-trace`
/// makes one trace of the files. Horovod: `HOROVOD_TIMELINE`.
///
/// A call leaves a record in a ring, and a thread writes it. The file can be read even if the
/// process is killed: whole events are appended, and the last 20 milliseconds may be missing.
/// **Threads**: `stop` may be called by any thread at any time.
/// @snippet tests/docs/snippets.cpp timeline
class timeline {
public:
    timeline() : recorder_(std::make_shared<detail::trace_recorder>()) {}

    /// True between `start_timeline` and `stop`.
    bool records() const { return recorder_->records(); }

    /// Ends the file, after all events so far, on this rank. It does nothing if none is recorded.
    timeline_summary stop() { return recorder_->stop(); }

    void on_begin(const event& e) {
        begun_ = e.time;
        phases_ = 0;
        times_ = 0;
        if (unit_begun_ == 0) unit_begun_ = e.time;
        if (!recorder_->records()) return;
        if (std::exchange(unit_is_new_, false) && recorder_->marks_units())
            push(detail::trace_kind::unit, e, true, {});
        push(detail::trace_kind::call_begins, e, true, {});
    }

    void on_phase(const event& e, phase p) {
        if (times_ == most_phases) return;
        phases_ |= std::uint16_t(unsigned(p) << 2 * times_);
        at_[first_phase + times_++] = e.time;
    }

    void on_end(const event& e, bool succeeded) {
        ended_ = e.time;
        if (!recorder_->records()) return;
        at_[first_phase - 1] = begun_;
        push(detail::trace_kind::call_ended, e, succeeded, {at_ + first_phase - 1, times_ + 1},
             phases_);
    }

    // It is told at the end of the next call, and stands at that of its own.
    void on_arrivals(const event& e) {
        if (!recorder_->records() || ended_ == 0) return;
        const detail::last_rank last(e.took, e.size);
        if (last.waited < least_wait_marked) return;
        event of_call = e;
        of_call.time = ended_;
        const std::int64_t waited[] = {last.waited};
        push(detail::trace_kind::came_last, of_call, true, {waited, 1}, 0, last.rank);
    }

    void on_counts(const event& e, std::string_view names, const std::int64_t* values) {
        if (!recorder_->records()) return;
        const auto most = std::ptrdiff_t(detail::trace_record::most_times);
        const auto all = std::min(1 + std::count(names.begin(), names.end(), ','), most);
        event about = e;
        about.collective = names;
        push(detail::trace_kind::counts, about, true, {values, std::size_t(all)});
    }

    void on_split(timeline& parent) {
        recorder_ = parent.recorder_;
        source_ = recorder_->next_source();
    }

    // A tensor of a device leaves one record, when it is complete: its name may come again before.
    void on_submitted(const event& e) {
        if (recorder_->records() && !e.on_device) push(detail::trace_kind::submitted, e, true, {});
    }
    void on_rank_ready(const event& e, int rank) {
        if (recorder_->records()) push(detail::trace_kind::rank_ready, e, true, {}, 0, rank);
    }
    void on_ready(const event& e) {
        if (e.on_device) return;
        if (std::exchange(unit_begun_, 0) != 0) unit_tensors_ = 0;
        ++unit_tensors_;
        unit_is_new_ = true;
        is_predicted_ = e.time == e.made;
        ready_ = e.time;
    }
    void on_complete(const event& e, bool succeeded) {
        if (e.on_device) return device_tensor_ended(e, succeeded);
        const bool has_run = unit_tensors_ > 0;  // else the ranks have refused it
        if (has_run) --unit_tensors_;
        if (!recorder_->records()) return;
        at_[0] = !has_run ? 0 : is_predicted_ ? e.made : ready_;
        at_[1] = has_run ? unit_begun_ : 0;
        at_[2] = ended_;
        push(detail::trace_kind::tensor_ended, e, succeeded, {at_, first_phase + times_}, phases_);
    }

    /// Begins a file. `start_timeline` calls it on all ranks.
    void start(const timeline_options& options, const detail::trace_place& place) {
        recorder_->start(options, place);
    }

private:
    static constexpr std::int64_t least_wait_marked = 50'000;  // nanoseconds
    static constexpr std::size_t first_phase = 3, most_phases = 8;
    static_assert(first_phase + most_phases == detail::trace_record::most_times);

    void device_tensor_ended(const event& e, bool succeeded) {
        const std::int64_t times[first_phase] = {e.ready, e.enqueued, e.time};
        if (recorder_->records())
            push(detail::trace_kind::tensor_ended, e, succeeded, {times, first_phase});
    }

    // It reads nothing of the call under way, which another thread may run.
    void push(detail::trace_kind kind, const event& e, bool succeeded,
              detail::slice<const std::int64_t> times, std::uint16_t phases = 0, int rank = -1) {
        detail::trace_record r;
        r.kind = kind;
        r.succeeded = succeeded;
        r.id = e.id;
        r.phases = phases;
        r.source = source_;
        r.rank = rank;
        r.bytes = e.bytes;
        r.time = e.time;
        r.made = e.made;
        recorder_->push(r, times, e.collective, e.name);
    }

    std::shared_ptr<detail::trace_recorder> recorder_;
    std::uint16_t source_ = 0;

    // The call under way, for the thread that runs it.
    std::int64_t begun_ = 0, ended_ = 0;
    std::int64_t at_[detail::trace_record::most_times];  // room for two, the begin, then phases
    std::uint16_t phases_ = 0;
    std::size_t times_ = 0;
    // The unit of an engine that is under way.
    std::int64_t ready_ = 0, unit_begun_ = 0;
    std::size_t unit_tensors_ = 0;  // that are not complete
    bool is_predicted_ = false, unit_is_new_ = false;
};

static_assert(observer<timeline>);

}  // namespace hvd::inline v0
