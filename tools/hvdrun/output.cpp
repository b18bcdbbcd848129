// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "output.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "failure.hpp"
#include "times.hpp"

namespace hvdrun {
namespace {

constexpr int colours[] = {36, 33, 32, 35, 34, 31};
// A prompt is short; the rest of a long line is on its way.
constexpr double time_for_newline = 0.1, time_for_long_line = 1;
constexpr std::size_t longest_prompt = 4096;
constexpr std::size_t bytes_at_once = 1 << 16;

bool is_terminal(int stream) {
    const char* kind = std::getenv("TERM");
    return ::isatty(stream) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
}

}  // namespace

screen::screen(bool with_times) : with_times_(with_times), status_is_shown_(is_terminal(2)) {
    const char* without = std::getenv("NO_COLOR");
    for (const int stream : {1, 2})
        has_colours_[stream] = is_terminal(stream) && (without == nullptr || *without == 0);
    winsize size{};
    if (status_is_shown_ && ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        width_ = size.ws_col;
}

std::string screen::prefix(int rank, int stream, bool begins) const {
    std::string result = with_times_ ? timestamp() + " " : "";
    const std::string colour =
        has_colours_[stream] ? "\33[" + std::to_string(colours[rank % 6]) + "m" : "";
    result += colour + "[" + std::to_string(rank) + "]<" + (stream == 1 ? "stdout" : "stderr") +
              ">" + (begins ? ":" : "+:");
    return colour.empty() ? result : result + "\33[0m";
}

void screen::print(int rank, int stream, const line_part& line) {
    std::string& bytes = taken_[stream];
    bytes += prefix(rank, stream, line.begins);
    bytes += line.bytes;
    if (bytes.back() != '\n') bytes += '\n';
}

void screen::flush() {
    for (const int stream : {1, 2}) {
        if (!taken_[stream].empty()) write(stream, taken_[stream]);
        taken_[stream].clear();
    }
}

void screen::say(const std::string& text) { write(2, "hvdrun: " + text + "\n"); }

void screen::write(int stream, const std::string& bytes) {
    const std::string shown = status_;
    show_status("");
    if (!write_all(stream, bytes.data(), bytes.size()) && stream == 1) error_ = errno;
    show_status(shown);
}

void screen::show_status(const std::string& text) {
    if (!status_is_shown_ || text == status_) return;
    const std::string line = "\r\33[K" + text.substr(0, std::size_t(width_ - 1));
    write_all(2, line.data(), line.size());
    status_ = text;
}

void rank_stream::open_file(const std::string& path, bool with_times, bool goes_on) {
    // A lost rank's own children may still write when the slot has its next rank.
    const int how = O_APPEND | (goes_on ? 0 : O_TRUNC);
    file_ = file_descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | how | O_CLOEXEC, 0666));
    if (!file_) throw failure(1, path + ": the file cannot be written: " + strerror(errno));
    times_in_file_ = with_times;
}

bool rank_stream::read(int from, screen& to) {
    char bytes[bytes_at_once];
    const ssize_t n = ::read(from, bytes, sizeof bytes);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n <= 0) {
        finish(to);
        return false;
    }
    add({bytes, std::size_t(n)}, to);
    return true;
}

void rank_stream::add(std::string_view bytes, screen& to) {
    lines_.add(bytes, [&](const line_part& line) {
        take(line, to);
        part_since_ = 0;
    });
    if (part_since_ == 0 || lines_.part_size() > longest_prompt) part_since_ = seconds();
    to.flush();
}

void rank_stream::show_part(double now, screen& to) {
    const bool is_long = lines_.part_size() > longest_prompt;
    if (!has_part() || now < part_since_ + (is_long ? time_for_long_line : time_for_newline))
        return;
    part_since_ = 0;
    lines_.show_part([&](const line_part& part) { take(part, to); });
    to.flush();
}

void rank_stream::finish(screen& to) {
    lines_.finish([&](const line_part& line) { take(line, to); });
    to.flush();
}

void rank_stream::take(const line_part& line, screen& to) {
    to.print(rank_, stream_, line);
    if (!file_) return;
    std::string bytes = times_in_file_ && line.begins ? timestamp() + " " : "";
    bytes += line.bytes;
    if (write_all(file_.number(), bytes.data(), bytes.size())) return;
    to.note_full_file("the output of rank " + std::to_string(rank_) +
                      " cannot be written to its file: " + strerror(errno));
    file_.close();
}

void make_folder(const std::string& path) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) throw failure(1, path + ": the folder cannot be made: " + error.message());
}

std::string make_rank_folder(const std::string& folder, int rank, int ranks) {
    std::string number = std::to_string(rank);
    const std::size_t digits = std::to_string(ranks - 1).size();
    if (number.size() < digits) number.insert(0, digits - number.size(), '0');
    const std::string path = folder + "/rank." + number;
    make_folder(path);
    return path;
}

}  // namespace hvdrun
