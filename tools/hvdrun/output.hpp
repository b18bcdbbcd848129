// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <string_view>

#include "file_descriptor.hpp"
#include "lines.hpp"

namespace hvdrun {

// Where the lines of all ranks go: this program's own streams, which may be a terminal with a line
// of status below them.
class screen {
public:
    explicit screen(bool with_times);
    ~screen() { show_status(""); }

    // Takes a line of a rank, which flush() writes with those before it. `stream` is 1 or 2, as
    // hvdrun's own.
    void print(int rank, int stream, const line_part& line);
    void flush();
    // A message of hvdrun itself.
    void say(const std::string& text);
    // Replaces the line of status. Without a terminal there is none.
    void show_status(const std::string& text);
    bool has_status() const { return status_is_shown_; }
    // 0, or the error by which the standard output takes no more.
    int error() const { return error_; }
    // The file of a rank takes no more. The first reason stays.
    void note_full_file(const std::string& why) {
        if (full_file_.empty()) full_file_ = why;
    }
    const std::string& full_file() const { return full_file_; }

private:
    void write(int stream, const std::string& bytes);
    std::string prefix(int rank, int stream, bool begins) const;

    bool with_times_, status_is_shown_;
    int error_ = 0;
    bool has_colours_[3] = {};  // by stream
    int width_ = 80;
    std::string status_, full_file_, taken_[3];  // by stream
};

// One of the two streams of a rank: lines for the screen, and the same bytes for a file.
class rank_stream {
public:
    rank_stream(int rank, int stream) : rank_(rank), stream_(stream) {}

    // `path` is a new file, or goes on. With times each line of it begins with one.
    void open_file(const std::string& path, bool with_times, bool goes_on);
    // Takes all that can be read now. Returns false at the end of the stream.
    bool read(int from, screen& to);
    // Takes bytes that somebody else has read.
    void add(std::string_view bytes, screen& to);
    void finish(screen& to);
    // A line that has no end yet is shown when it has waited for a short time: it may be a prompt.
    bool has_part() const { return lines_.has_part(); }
    void show_part(double now, screen& to);

private:
    void take(const line_part& line, screen& to);

    int rank_, stream_;
    line_splitter lines_;
    file_descriptor file_;
    bool times_in_file_ = false;
    double part_since_ = 0;  // 0: no line is without its end
};

// Makes a folder, and those in which it is.
void make_folder(const std::string& path);

// Makes the folder of a rank and gives its path: FOLDER/rank.007.
std::string make_rank_folder(const std::string& folder, int rank, int ranks);

}  // namespace hvdrun
