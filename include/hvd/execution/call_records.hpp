// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

#include "../core/error.hpp"
#include "../core/message_sink.hpp"
#include "../protocol/call_record.hpp"

namespace hvd::inline v0 {
namespace detail {

// A line that is made without memory, also in a handler of a signal. The rest of a long one is cut
// off.
class record_line {
public:
    record_line& add(std::string_view text) noexcept {
        const std::size_t n =
            text.size() < sizeof text_ - size_ ? text.size() : sizeof text_ - size_;
        if (n > 0) std::memcpy(text_ + size_, text.data(), n);
        size_ += n;
        return *this;
    }
    record_line& add(std::uint64_t number) noexcept {
        char digits[20];
        std::size_t n = 0;
        do digits[sizeof digits - ++n] = char('0' + number % 10);
        while ((number /= 10) != 0);
        return add(std::string_view(digits + sizeof digits - n, n));
    }
    std::string_view text() const noexcept { return {text_, size_}; }
    const char* c_str() noexcept {
        text_[size_ < sizeof text_ ? size_ : sizeof text_ - 1] = 0;
        return text_;
    }

private:
    char text_[1024];
    std::size_t size_ = 0;
};

// Adds some of the last calls of a rank: their numbers, names and sizes.
[[gnu::cold]] inline void add_last_calls(record_line& line, const call_record& r,
                                         std::uint64_t most) noexcept {
    const std::uint64_t last = r.begun();
    if (last == 0) return void(line.add("none"));
    for (std::uint64_t n = last > most ? last - most + 1 : 1; n <= last; ++n) {
        const call_record::entry& e = r.entry_of(n);
        line.add("#").add(n).add(" ").add(name_of(e.kind));
        for (const call_record::name& name : r.names)
            if (name.number == n) line.add(" '").add(name.text).add("'");
        line.add(" of ").add(e.bytes).add(" bytes");
        if (e.refused == call_record::entry::failed) line.add(", which failed");
        else if (n == last && r.is_inside()) line.add(", which has not ended");
        if (n < last) line.add("; ");
    }
}

// The file of HVD_CALL_RECORD for this process: "{rank}" is the number of its first rank, which
// else stands before the ending. Empty if there is none.
[[gnu::cold]] inline record_line record_file_of(const char* pattern, std::uint64_t rank) noexcept {
    record_line path;
    if (pattern == nullptr || *pattern == 0) return path;
    const std::string_view all(pattern), mark = "{rank}";
    const std::size_t at = all.find(mark);
    if (at != std::string_view::npos)
        return path.add(all.substr(0, at)).add(rank).add(all.substr(at + mark.size()));
    const std::size_t slash = all.rfind('/'), dot = all.rfind('.');
    const std::size_t name = slash == std::string_view::npos ? 0 : slash + 1;
    const std::size_t end = dot != std::string_view::npos && dot > name ? dot : all.size();
    return path.add(all.substr(0, end)).add(".").add(rank).add(all.substr(end));
}

[[gnu::cold]] inline bool is_record_wanted() noexcept {
    const char* const pattern = std::getenv("HVD_CALL_RECORD");
    return pattern != nullptr && *pattern != 0;
}

// The rank of the first communicator that this process records.
[[gnu::cold]] inline std::uint64_t first_recorded_rank() noexcept {
    record_head head{};
    for (std::size_t i = 1; i < records_of_process.pages_ever(); ++i)
        if (pread(records_of_process.file(), &head, sizeof head, off_t(i * record_memory::page)) ==
                ssize_t(sizeof head) &&
            head.type == record_head::calls)
            break;
    return std::uint64_t(head.rank);
}

// Writes all records of this process to a file, for hvd-trace. It may run in a handler of a signal.
// Returns false, with errno, if it could not.
[[gnu::cold]] inline bool write_records(const char* path) noexcept {
    const int from = records_of_process.file();
    if (from < 0) {
        errno = ENODATA;
        return false;
    }
    const int to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (to < 0) return false;
    bool is_whole = true;
    for (std::size_t i = 0; is_whole && i < records_of_process.pages_ever(); ++i) {
        alignas(8) char page[record_memory::page];
        is_whole = pread(from, page, sizeof page, off_t(i * sizeof page)) == ssize_t(sizeof page);
        if (i == 0) {
            const time_point time = now();
            std::memcpy(page + offsetof(record_file_head, written), &time, sizeof time);
        }
        is_whole = is_whole && write(to, page, sizeof page) == ssize_t(sizeof page);
    }
    return (close(to) == 0) & is_whole;
}

// The same for the tensors of an engine.
[[gnu::cold]] inline void add_last_tensors(record_line& line, const tensor_record& r,
                                           std::uint64_t most) noexcept {
    const std::uint64_t last = r.submitted;
    if (last == 0) return void(line.add("none"));
    const char* between = "";
    for (std::uint64_t n = last > most ? last - most + 1 : 1; n <= last; ++n)
        for (const tensor_record::entry& e : r.entries) {
            if (e.number != n) continue;
            line.add(between).add("#").add(n).add(" '").add(e.name).add("' of ").add(e.bytes);
            line.add(" bytes").add(e.done != 0 ? "" : ", which is in flight");
            between = "; ";
        }
}

// Tells the last calls of a rank that gives a communicator up, or `last`: to the file of
// HVD_CALL_RECORD, or to the error sink.
template <class F>
[[gnu::cold]] void tell_record(int rank, F last) noexcept {
    record_line path = record_file_of(std::getenv("HVD_CALL_RECORD"), std::uint64_t(rank));
    record_line line;
    line.add("hvd: rank ").add(std::uint64_t(rank));
    if (path.text().empty()) last(line);
    else if (write_records(path.c_str())) line.add(": its last calls are in ").add(path.text());
    else
        line.add(": its last calls could not be written to ")
            .add(path.text())
            .add(": ")
            .add(std::strerror(errno));
    write_line(line.text());
}
[[gnu::cold]] inline void tell_last_calls(const call_record& r) noexcept {
    tell_record(r.head.rank, [&](record_line& line) {
        add_last_calls(line.add(": its last calls are "), r, 4);
    });
}

// Writes the last calls of all ranks of this process to standard error, in a handler of a signal.
[[gnu::cold]] inline void write_last_calls() noexcept {
    alignas(8) static char page[record_memory::page];  // the stack of a handler may be small
    for (std::size_t i = 1; i < records_of_process.pages_ever(); ++i) {
        if (pread(records_of_process.file(), page, sizeof page, off_t(i * sizeof page)) !=
            ssize_t(sizeof page))
            return;
        const auto& r = *reinterpret_cast<const call_record*>(page);
        if (r.head.type != record_head::calls) {
            if (r.head.pages > 1) i += r.head.pages - 1;
            continue;
        }
        record_line line;
        line.add("hvd: the last calls of rank ").add(std::uint64_t(r.head.rank)).add(" of ");
        line.add(std::uint64_t(r.head.size)).add(" (");
        line.add(r.head.label[0] == 0 ? "world" : r.head.label).add("): ");
        add_last_calls(line, r, 8);
        line.add("\n");
        if (write(2, line.text().data(), line.text().size()) < 0) return;
    }
}

struct dump_file {
    char path[1024];  // empty: standard error
};
[[gnu::visibility("default")]] inline dump_file file_of_dumps{};

}  // namespace detail

/// Installs a handler for a signal, such as SIGQUIT: it writes the last calls of this process, and
/// the process goes on. They go to the file of HVD_CALL_RECORD, which `hvd-trace` reads, or to
/// standard error. hvd installs no handler unless it is asked to. The handler calls only functions
/// that are safe there; system calls that it interrupts are begun anew.
/// @param signal its number.
/// @throws hvd::usage_error for a signal that can't be handled.
/// @snippet tests/docs/snippets.cpp dump_on_signal
inline void dump_on_signal(int signal) {
    using namespace detail;
    const char* const pattern = std::getenv("HVD_CALL_RECORD");
    store(file_of_dumps.path, pattern != nullptr ? pattern : "");
    struct sigaction action{};
    action.sa_flags = SA_RESTART;
    action.sa_handler = [](int) {
        const int error = errno;
        if (file_of_dumps.path[0] == 0) write_last_calls();
        else write_records(record_file_of(file_of_dumps.path, first_recorded_rank()).c_str());
        errno = error;
    };
    if (sigaction(signal, &action, nullptr) != 0)
        throw usage_error(-1, text("hvd: dump_on_signal: signal ", signal, " can't be handled"));
}

}  // namespace hvd::inline v0
