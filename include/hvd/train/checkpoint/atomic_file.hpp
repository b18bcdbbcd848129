// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "safetensors.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

class file_descriptor {
public:
    file_descriptor(const std::string& path, int flags)
        : handle_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
    file_descriptor(const file_descriptor&) = delete;
    file_descriptor& operator=(const file_descriptor&) = delete;
    ~file_descriptor() { close(); }

    bool close() { return handle_ < 0 || ::close(std::exchange(handle_, -1)) == 0; }
    int get() const { return handle_; }

private:
    int handle_;
};

// A file that exists completely or not at all. It is written beside its destination, synchronized
// to the disk, and renamed. A process that dies before commit() leaves the old file.
class atomic_file {
public:
    explicit atomic_file(std::string path)
        : path_(std::move(path)),
          temporary_(path_ + ".tmp"),
          file_((require_replaceable(), temporary_), O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK) {
        if (file_.get() < 0) fail("cannot be written");
    }
    atomic_file(const atomic_file&) = delete;
    atomic_file& operator=(const atomic_file&) = delete;
    ~atomic_file() {
        if (!committed_ && file_.get() >= 0) ::unlink(temporary_.c_str());
    }

    void write(std::span<const std::byte> bytes) {
        while (!bytes.empty()) {
            const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
            if (written < 0 && errno == EINTR) continue;
            if (written < 0) fail("cannot be written");
            bytes = bytes.subspan(std::size_t(written));
        }
    }

    void commit() {
        if (::fsync(file_.get()) != 0) fail("cannot be synchronized to the disk");
        if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot be put in its place");
        committed_ = true;
        const std::size_t slash = path_.rfind('/');
        const file_descriptor folder(slash == std::string::npos ? "." : path_.substr(0, slash + 1),
                                     O_RDONLY | O_DIRECTORY);
        if (folder.get() < 0 || ::fsync(folder.get()) != 0)
            fail("cannot be synchronized to the disk: its folder fails");
    }

private:
    // A rename would replace a device by a file, and opening a FIFO waits for its reader.
    void require_replaceable() const {
        for (const std::string& path : {path_, temporary_}) {
            struct stat status;
            if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
                refuse_file(path_, "cannot be written: ", path, " is there and is no regular file");
        }
    }

    [[gnu::cold, noreturn]] void fail(const char* what) const {
        refuse_file(path_, what, ": ", std::strerror(errno));
    }

    std::string path_;
    std::string temporary_;
    file_descriptor file_;
    bool committed_ = false;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
