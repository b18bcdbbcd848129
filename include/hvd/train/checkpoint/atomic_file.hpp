// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <utility>

#include "safetensors.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

class file_descriptor {
public:
    file_descriptor() = default;
    file_descriptor(const std::string& path, int flags, mode_t rights = 0666)
        : handle_(::open(path.c_str(), flags | O_CLOEXEC, rights)) {}
    file_descriptor(file_descriptor&& other) noexcept : handle_(std::exchange(other.handle_, -1)) {}
    file_descriptor& operator=(file_descriptor&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~file_descriptor() { close(); }

    bool close() { return handle_ < 0 || ::close(std::exchange(handle_, -1)) == 0; }
    int get() const { return handle_; }

private:
    int handle_ = -1;
};

// The temporary files of one path, beside it. A writer locks its own as long as it lives. So a file
// without a lock is that of a writer which was killed, and the next writer removes it.
class temporary_files {
public:
    explicit temporary_files(const std::string& path)
        : folder_(path.substr(0, path.rfind('/') + 1)),
          prefix_(path.substr(folder_.size()) + ".tmp-") {}

    std::string folder() const { return folder_.empty() ? "./" : folder_; }

    std::string new_name() const {
        std::random_device random;
        std::string name = folder_ + prefix_;
        for (int i = 0; i < digits; ++i) name += "0123456789abcdef"[random() % 16];
        return name;
    }

    static bool lock(const file_descriptor& file, int flags = 0) {
        while (::flock(file.get(), LOCK_EX | flags) != 0)
            if (errno != EINTR) return false;
        return true;
    }

    void remove_those_of_the_dead() const {
        DIR* const list = ::opendir(folder().c_str());
        if (list == nullptr) return;
        while (const dirent* entry = ::readdir(list))
            if (is_temporary(entry->d_name)) remove_if_dead(folder_ + entry->d_name);
        ::closedir(list);
    }

private:
    static constexpr int digits = 16;

    bool is_temporary(std::string_view name) const {
        return name.starts_with(prefix_) && name.size() == prefix_.size() + digits &&
               name.find_first_not_of("0123456789abcdef", prefix_.size()) == name.npos;
    }

    static void remove_if_dead(const std::string& name) {
        const file_descriptor file(name, O_RDWR | O_NONBLOCK | O_NOFOLLOW);
        if (file.get() >= 0 && lock(file, LOCK_NB)) ::unlink(name.c_str());
    }

    std::string folder_, prefix_;  // the folder ends in a slash, or is empty
};

// A file that exists completely or not at all. It is written beside its destination under a name of
// its own, synchronized to the disk, and renamed. A process that dies before commit() leaves the
// old file. If several write at the same time, the last to commit wins.
class atomic_file {
public:
    explicit atomic_file(std::string path, mode_t rights = 0666)
        : path_(std::move(path)), rights_(rights), temporaries_(path_) {
        require_no_nul(path_.c_str(), "the path", path_);
        require_replaceable();
        temporaries_.remove_those_of_the_dead();
        while (!create()) {
        }
    }
    atomic_file(const atomic_file&) = delete;
    atomic_file& operator=(const atomic_file&) = delete;
    ~atomic_file() {
        if (!committed_) ::unlink(temporary_.c_str());
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
        const file_descriptor folder(temporaries_.folder(), O_RDONLY | O_DIRECTORY);
        if (folder.get() < 0 || ::fsync(folder.get()) != 0)
            fail("cannot be synchronized to the disk: its folder fails");
    }

private:
    // A rename would replace a device by a file, and opening a FIFO waits for its reader.
    void require_replaceable() const {
        struct stat status;
        if (::stat(path_.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
            refuse_file(path_, "cannot be written: it is no regular file");
    }

    // False if the name was taken, or another writer removed the file before it was locked. Where
    // the file system has no locks, nobody removes it.
    bool create() {
        temporary_ = temporaries_.new_name();
        file_ = file_descriptor(temporary_, O_WRONLY | O_CREAT | O_EXCL, rights_);
        if (file_.get() < 0 && errno == EEXIST) return false;
        if (file_.get() < 0) fail("cannot be written");
        struct stat status;
        return !temporary_files::lock(file_) || ::fstat(file_.get(), &status) != 0 ||
               status.st_nlink > 0;
    }

    [[gnu::cold, noreturn]] void fail(const char* what) const {
        refuse_file(path_, what, ": ", std::strerror(errno));
    }

    std::string path_;
    mode_t rights_;
    temporary_files temporaries_;
    std::string temporary_;
    file_descriptor file_;
    bool committed_ = false;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
