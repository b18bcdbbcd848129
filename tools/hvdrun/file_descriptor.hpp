// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <utility>

#include <unistd.h>

namespace hvdrun {

// A file descriptor that its owner closes.
class file_descriptor {
public:
    file_descriptor() = default;
    explicit file_descriptor(int number) : number_(number) {}
    file_descriptor(file_descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    file_descriptor& operator=(file_descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~file_descriptor() { close(); }

    int number() const { return number_; }
    explicit operator bool() const { return number_ >= 0; }
    void close() {
        if (number_ >= 0) ::close(number_);
        number_ = -1;
    }

private:
    int number_ = -1;
};

// Two ends of a pipe, closed when a program is started.
struct pipe_ends {
    file_descriptor read, write;
};
pipe_ends make_pipe();

// Writes all of it, however long the reader takes. Returns false if nobody reads any more.
bool write_all(int file, const char* data, std::size_t bytes);

// Reads and writes of this end return at once.
void never_block(const file_descriptor& end);

}  // namespace hvdrun
