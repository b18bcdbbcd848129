// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <bit>
#include <cerrno>
#include <memory>
#include <string>

#include <fcntl.h>
#include <unistd.h>

#include "../core/error.hpp"
#include "../core/message_sink.hpp"
#include "../core/settings/timeline_options.hpp"
#include "../platform/clock.hpp"
#include "../platform/futex.hpp"
#include "../platform/thread.hpp"
#include "trace_tracks.hpp"

namespace hvd::inline v0 {

/// The result of a timeline.
struct timeline_summary {
    std::string file;           ///< empty if nothing was recorded
    std::uint64_t bytes = 0;    ///< of the file
    std::uint64_t dropped = 0;  ///< events for which there was no room
};

namespace detail {

// The place of a trace among those of the other ranks.
struct trace_place {
    int rank = 0, size = 1;
    std::int64_t clock_offset = 0, clock_error = 0;  // of this rank's clock, from that of rank 0
};

// The file of one rank: "{rank}" is its number, which else stands before the ending.
inline std::string file_of_rank(std::string pattern, int rank) {
    const std::string number = std::to_string(rank);
    const std::string_view mark = "{rank}";
    std::size_t at = pattern.find(mark);
    if (at != std::string::npos) {
        for (; at != std::string::npos; at = pattern.find(mark, at + number.size()))
            pattern.replace(at, mark.size(), number);
        return pattern;
    }
    const std::size_t name = pattern.rfind('/') == std::string::npos ? 0 : pattern.rfind('/') + 1;
    const std::size_t ending = pattern.rfind('.');
    const bool has_ending = ending != std::string::npos && ending > name;
    return pattern.insert(has_ending ? ending : pattern.size(), "." + number);
}

// A trace file that is bounded in size. Each event reaches it whole.
class trace_file {
public:
    // @throws usage_error if the file can't be made.
    trace_file(std::string name, int rank, std::size_t most_bytes)
        : name_(std::move(name)), rank_(rank), most_(most_bytes) {
        file_ = open(name_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (file_ < 0)
            throw usage_error(rank, text("hvd: rank ", rank, " can't write the timeline '", name_,
                                         "': ", std::strerror(errno)));
        buffer_.reserve(flushed_at + 8192);
        buffer_ = "[\n";
    }
    trace_file(const trace_file&) = delete;
    trace_file& operator=(const trace_file&) = delete;
    ~trace_file() { ::close(file_); }

    // `kept` bytes must stay free behind it. False if there is no room.
    bool add(std::string_view event, std::size_t kept) {
        if (failed_ || bytes() + event.size() + 2 + kept > most_) return false;
        buffer_.append(event);
        buffer_ += ",\n";
        if (buffer_.size() >= flushed_at) flush();
        return true;
    }
    // The last event.
    void end(std::string_view event) {
        buffer_.append(event);
        buffer_ += "\n]\n";
        flush();
    }
    void flush() {
        std::string_view left = buffer_;
        while (!left.empty() && !failed_) {
            const ssize_t n = ::write(file_, left.data(), left.size());
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) {
                failed_ = true;
                write_line(text("hvd: rank ", rank_, " can't write the timeline '", name_,
                                "': ", std::strerror(errno)));
                break;
            }
            written_ += std::uint64_t(n);
            left.remove_prefix(std::size_t(n));
        }
        buffer_.clear();
    }

    bool failed() const { return failed_; }
    std::uint64_t bytes() const { return written_ + buffer_.size(); }
    const std::string& name() const { return name_; }

private:
    static constexpr std::size_t flushed_at = 65536;

    std::string name_, buffer_;
    const int rank_;
    const std::uint64_t most_;
    std::uint64_t written_ = 0;
    int file_ = -1;
    bool failed_ = false;
};

// Records the events of a rank: those who make calls leave records, and a thread writes them.
// It sleeps while there are none.
class trace_recorder {
public:
    trace_recorder() = default;
    trace_recorder(const trace_recorder&) = delete;
    trace_recorder& operator=(const trace_recorder&) = delete;
    ~trace_recorder() { stop(); }

    bool records() const { return session_.load() != nullptr; }
    // A communicator of this rank whose events go here.
    std::uint16_t next_source() { return sources_.add(1); }

    void start(const timeline_options& o, const trace_place& place,
               std::size_t buffer_bytes = tuning::timeline_buffer_bytes) {
        const lock_guard lock(mutex_);
        if (running_)
            throw usage_error(place.rank, text("hvd: rank ", place.rank, " records the timeline '",
                                               running_->file.name(), "' already"));
        constexpr std::size_t least = 65536;
        if (o.max_bytes < least)
            throw usage_error(place.rank,
                              text("hvd: rank ", place.rank, ": .max_bytes of a timeline is ",
                                   o.max_bytes, ", and must be at least ", least));
        running_ = std::make_unique<session>(o, place, buffer_bytes, pushing_);
        marks_units_.store(o.mark_units);
        session_.store(running_.get());
    }

    timeline_summary stop() {
        const lock_guard lock(mutex_);
        if (!running_) return {};
        if (running_->process != getpid()) {  // a forked child: the threads are the parent's
            session_.store(nullptr);
            (void)running_.release();
            return {};
        }
        {
            const lock_guard no_push(pushing_);
            session_.store(nullptr);
        }
        const timeline_summary result = running_->finish();
        running_.reset();
        return result;
    }

    void push(const trace_record& head, slice<const std::int64_t> times,
              std::string_view collective, std::string_view name) {
        const lock_guard lock(pushing_);
        if (session* const s = session_.load_relaxed()) s->push(head, times, collective, name);
    }
    bool marks_units() const { return records() && marks_units_.load(); }

private:
    // One recording, from its start to its stop.
    struct session {
        session(const timeline_options& o, const trace_place& where, std::size_t buffer_bytes,
                mutex& lock)
            : pushing(lock),
              file(file_of_rank(o.file, where.rank), where.rank, o.max_bytes),
              place(where),
              ring(std::bit_ceil(buffer_bytes)),
              tracks(where.rank, putting{this}),
              writer([this] { serve(); }) {
            if (!writer)
                throw usage_error(where.rank, text("hvd: rank ", where.rank,
                                                   ": the system gives no thread to a timeline"));
        }

        // Called by any thread, with the lock held.
        void push(const trace_record& head, slice<const std::int64_t> times,
                  std::string_view collective, std::string_view name) {
            if (is_full.load_relaxed() || !ring.push(head, times, collective, name)) {
                dropped.add(1);
                return;
            }
            const bool sleeps = idle.load_relaxed() && idle.exchange(false);
            const bool fills = ring.half_full() && !urged.load_relaxed() && !urged.exchange(true);
            if (sleeps || fills) wake();
        }
        void wake() {
            word.add(1);
            wake_sleepers(word);
        }

        // ---- the writer's thread ------------------------------------------------------------

        struct putting {
            session* own;
            bool operator()(const std::string& event, bool is_end = false) const {
                return own->put(event, is_end);
            }
        };

        bool put(const std::string& event, bool is_end) {
            // Ends of spans have their room since the begins were written.
            const std::size_t kept = last_words + (is_end ? 0 : room_for_end * (spans() + 1));
            if (is_full.load_relaxed() && !is_end) return lose();
            if (file.add(event, kept)) return true;
            if (!is_end) is_full.store(true);
            return lose();
        }
        bool lose() {
            dropped.add(1);
            return false;
        }
        std::size_t spans() const { return tracks.open_spans(); }

        void serve() {
            introduce();
            for (bool last = false; !last;) {
                const std::uint32_t seen = word.load_in_order();
                last = stopping.load();
                const bool any = drain();
                if (last || stopping.load()) continue;
                if (any) {
                    sleep_while(word, seen, nap);
                    continue;
                }
                if (begin_rest()) sleep_while(word, seen, tuning::second * 3600);
                idle.exchange(false);
            }
        }

        // Whoever pushes from now on sees it, and wakes this thread.
        bool begin_rest() {
            const lock_guard lock(pushing);
            idle.store(true);
            return ring.empty();
        }

        bool drain() {
            urged.store(false);
            bool any = false;
            for (; ring.pop(record); any = true) tracks.take(record);
            if (!any) return false;
            tracks.rest();
            if (is_full.load_relaxed() && !closed) {
                closed = true;
                tracks.finish(record.time);
            }
            file.flush();
            return true;
        }

        void introduce() {
            char host[256] = {};
            gethostname(host, sizeof host - 1);
            trace_text words(place.rank);
            const trace_text::number numbers[] = {{"version", 1},
                                                  {"rank", place.rank},
                                                  {"size", place.size},
                                                  {"clock_offset_ns", place.clock_offset},
                                                  {"clock_error_ns", place.clock_error},
                                                  {"process", std::int64_t(process)}};
            put(words.facts("hvd_timeline", {numbers, 6}, "host", host), true);
            put(words.fact(0, "process_name", "name", "rank " + std::to_string(place.rank)), true);
            put(words.fact(0, "process_sort_index", "sort_index", place.rank), true);
            file.flush();
        }

        timeline_summary finish() {
            stopping.store(true);
            wake();
            writer.join();
            if (!closed) tracks.finish(now());
            const std::uint64_t lost = dropped.load();
            trace_text words(place.rank);
            const trace_text::number numbers[] = {{"dropped", std::int64_t(lost)}};
            file.end(words.facts("hvd_timeline_end", {numbers, 1}, "reason",
                                 is_full.load() ? "the file is full" : "stopped"));
            if (lost > 0)
                write_line(text("hvd: rank ", place.rank, ": the timeline '", file.name(),
                                is_full.load() ? "' is full: " : "' could not keep up: ", lost,
                                " events were dropped"));
            return {file.name(), file.bytes(), lost};
        }

        // Between two looks at the ring. A full one wakes the writer earlier.
        static constexpr std::int64_t nap = 20 * tuning::millisecond;
        static constexpr std::size_t last_words = 512, room_for_end = 128;

        mutex& pushing;
        trace_file file;
        const trace_place place;
        const pid_t process = getpid();
        trace_ring ring;
        trace_tracks<putting> tracks;
        taken_record record;
        bool closed = false;  // the file is full, and its spans have ended
        atomic<std::uint64_t> dropped{0};
        atomic<std::uint32_t> word{0};
        atomic<bool> idle{false}, urged{false}, stopping{false}, is_full{false};
        thread writer;  // last: it uses all of the above
    };

    mutex mutex_;    // of start and stop
    mutex pushing_;  // of those who push, and of the session's end
    std::unique_ptr<session> running_;
    atomic<session*> session_{nullptr};
    atomic<std::uint16_t> sources_{0};
    atomic<bool> marks_units_{false};
};

}  // namespace detail
}  // namespace hvd::inline v0
