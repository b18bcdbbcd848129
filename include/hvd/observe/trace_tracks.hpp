// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trace_text.hpp"

namespace hvd::inline v0::detail {

// Makes a rank's events of records, and gives each its track. On a track events never overlap
// unless one is inside the other: a communicator's calls have one, calls that waited in its queue
// have as many as wait at a time, and each tensor of an engine has its own.
//
// `put(text)` writes an event. It returns false if the event was not written.
template <class Put>
class trace_tracks {
public:
    trace_tracks(int rank, Put put) : text_(rank), put_(std::move(put)) {}

    void take(const taken_record& r) {
        switch (r.kind) {
            case trace_kind::call_begins: return call_begins(r);
            case trace_kind::call_ended: return call_ended(r);
            case trace_kind::submitted: return submitted(r);
            case trace_kind::rank_ready: return rank_ready(r);
            case trace_kind::came_last: return came_last(r);
            case trace_kind::tensor_ended: return tensor_ended(r);
            case trace_kind::counts: return counts(r);
            case trace_kind::unit:
                put_(text_.mark(number_of(calls_of(r.source).front(), r), "unit", r.time));
        }
    }

    // Writes the spans that have not ended with their begin.
    void rest() {
        for (track* t : std::exchange(begun_, {})) {
            if (t->state != track_state::begun) continue;
            t->state = put_(text_.begin(t->number, t->name, t->category, t->begin, t->about()))
                           ? track_state::open
                           : track_state::idle;
            if (t->state == track_state::open) ++open_;
        }
    }

    // The number of spans whose begin is written.
    std::size_t open_spans() const { return open_; }

    // Ends all spans.
    void finish(std::int64_t time) {
        begun_.clear();
        for (auto& calls : calls_)
            for (track& t : calls) finish(t, time);
        for (auto& [key, t] : tensors_) finish(t, time);
    }

private:
    enum class track_state : std::uint8_t { idle, begun, open };

    struct track {
        int number = -1;
        track_state state = track_state::idle;
        std::int64_t begin = 0, end = 0;  // of the span under way, of the last one
        std::int64_t recorded = 0;        // when the record of the begin was made
        std::string name, collective;
        std::string_view category;
        trace_text::details details{};

        trace_text::details about() const {
            trace_text::details d = details;
            d.collective = collective;
            return d;
        }
    };

    // ---- calls ------------------------------------------------------------------------------

    std::vector<track>& calls_of(std::uint16_t source) {
        if (calls_.size() <= source) calls_.resize(source + std::size_t(1));
        if (calls_[source].empty()) {
            calls_[source].reserve(most_queued);  // tracks stay where they are
            calls_[source].emplace_back();
        }
        return calls_[source];
    }
    // A call that waited since `made` goes to a track that has been free since then.
    track& track_for(const taken_record& r) {
        auto& all = calls_of(r.source);
        if (r.made == 0) return all.front();
        for (std::size_t i = 1; i < all.size(); ++i)
            if (all[i].state == track_state::idle && all[i].end <= r.made) return all[i];
        if (all.size() < most_queued) return all.emplace_back();
        return all.back();
    }
    int number_of(track& t, const taken_record& r) {
        if (t.number >= 0) return t.number;
        const auto place = std::size_t(&t - calls_of(r.source).data());
        std::string name = "calls";
        if (r.source > 0) name += " of communicator " + std::to_string(r.source);
        if (place > 0) name += ", queue " + std::to_string(place);
        return name_track(t, name);
    }

    void call_begins(const taken_record& r) {
        track& t = track_for(r);
        number_of(t, r);
        close_lost(t, r.time);
        begin(t, r, r.name.empty() ? r.collective : r.name, "call");
        current_of(r.source) = &t;
    }
    void call_ended(const taken_record& r) {
        track*& current = current_of(r.source);
        const std::int64_t begun = r.at[0];
        if (current == nullptr || current->state == track_state::idle || current->recorded != begun)
            call_begins(as_begin(r, begun));
        track& t = *std::exchange(current, nullptr);
        end(t, r, [&] {
            if (r.made != 0) put_phase(t, "queue", t.begin, begun);
            put_phases(t, r, 1, begun, r.time);
        });
    }
    void came_last(const taken_record& r) {
        const std::string waited = std::to_string(r.at[0] / 1000);
        put_(text_.mark(number_of(calls_of(r.source).front(), r),
                        "rank " + std::to_string(r.rank) + " came last, after " + waited + " us",
                        r.time));
    }
    void counts(const taken_record& r) {
        std::string name(r.name);
        if (r.source > 0) name += " of communicator " + std::to_string(r.source);
        put_(text_.counts(name, r.collective, {r.at, r.times}, r.time));
    }
    track*& current_of(std::uint16_t source) {
        if (current_.size() <= source) current_.resize(source + std::size_t(1));
        return current_[source];
    }
    static taken_record as_begin(taken_record r, std::int64_t begun) {
        r.time = begun;
        return r;
    }

    // ---- tensors ----------------------------------------------------------------------------

    track& track_of_tensor(const taken_record& r) {
        key_.assign(reinterpret_cast<const char*>(&r.source), sizeof r.source);
        key_ += r.name;
        track& t = tensors_[key_];
        if (t.number < 0) name_track(t, r.name);
        return t;
    }
    void submitted(const taken_record& r) {
        track& t = track_of_tensor(r);
        close_lost(t, r.time);
        begin(t, r, r.collective, "tensor");
    }
    void rank_ready(const taken_record& r) {
        const track& t = track_of_tensor(r);
        put_(text_.mark(t.number, "rank " + std::to_string(r.rank) + " is ready", r.time));
    }
    void tensor_ended(const taken_record& r) {
        track& t = track_of_tensor(r);
        if (t.state == track_state::idle) begin(t, r, r.collective, "tensor");
        const std::int64_t ready = r.at[0], ended = r.at[2];
        end(t, r, [&] {
            // A tensor of a device may come again before the one before it is done.
            const std::int64_t known = std::max(ready != 0 ? ready : r.time, t.begin);
            const std::int64_t begun = r.at[1] == 0 ? 0 : std::max(r.at[1], known);
            put_phase(t, "negotiate", t.begin, known);
            if (begun == 0) return;
            put_phase(t, "queue", known, begun);
            put_phases(t, r, 3, begun, ended);
        });
    }

    // ---- both -------------------------------------------------------------------------------

    void begin(track& t, const taken_record& r, std::string_view name, std::string_view category) {
        t.state = track_state::begun;
        t.begin = std::max(r.made != 0 ? r.made : r.time, t.end);
        t.recorded = r.time;
        t.name = name;
        t.category = category;
        t.collective = r.name.empty() || category == "tensor" ? std::string_view() : r.collective;
        t.details = {r.bytes, r.id, {}, false};
        begun_.push_back(&t);
    }
    template <class Phases>
    void end(track& t, const taken_record& r, Phases phases) {
        t.details.failed = !r.succeeded;
        const bool is_open = t.state == track_state::open;
        if (!is_open) put_(text_.span(t.number, t.name, t.category, t.begin, r.time, t.about()));
        phases();
        if (is_open) close(t, r.time, r.succeeded ? "" : "failed");
        t.state = track_state::idle;
        t.end = r.time;
    }
    void put_phases(const track& t, const taken_record& r, std::size_t from, std::int64_t begin,
                    std::int64_t end) {
        auto name = phase_names[1];
        for (std::size_t i = from; i < r.times; ++i) {
            put_phase(t, name, begin, r.at[i]);
            begin = r.at[i];
            name = phase_names[r.phases >> 2 * (i - from) & 3];
        }
        put_phase(t, name, begin, end);
    }
    // Perfetto takes a whole span for the outer one where another begins at the same time in two
    // parts. So a span is written as the one around it.
    void put_phase(const track& t, std::string_view name, std::int64_t begin, std::int64_t end) {
        if (end <= begin) return;
        if (t.state != track_state::open) {
            put_(text_.span(t.number, name, "phase", begin, end));
        } else if (put_(text_.begin(t.number, name, "phase", begin))) {
            ++open_;
            close(t, end, "");
        }
    }

    void close(const track& t, std::int64_t time, std::string_view how) {
        put_(text_.end(t.number, time, how), true);
        --open_;
    }
    // The end of the span before was lost.
    void close_lost(track& t, std::int64_t time) {
        if (t.state == track_state::open) close(t, time, "unfinished");
        t.state = track_state::idle;
    }
    void finish(track& t, std::int64_t time) {
        if (t.state == track_state::begun)
            put_(text_.span(t.number, t.name, t.category, t.begin, time, t.about()));
        close_lost(t, time);
    }

    int name_track(track& t, std::string_view name) {
        t.number = ++tracks_;
        put_(text_.fact(t.number, "thread_name", "name", name));
        put_(text_.fact(t.number, "thread_sort_index", "sort_index", t.number));
        return t.number;
    }

    static constexpr std::size_t most_queued = 256;

    trace_text text_;
    Put put_;
    int tracks_ = 0;
    std::size_t open_ = 0;
    std::vector<std::vector<track>> calls_;  // by communicator: made at once, and those that waited
    std::vector<track*> current_;            // of each communicator: the call under way
    std::unordered_map<std::string, track> tensors_;
    std::vector<track*> begun_;
    std::string key_;
};

}  // namespace hvd::inline v0::detail
