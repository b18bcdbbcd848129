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

namespace hvd::inline v0::detail {

// The place of a file: its path, or its name in a folder that stays open. Errors tell the path.
struct file_place {
    file_place(std::string p) : path(std::move(p)), name(path) {}
    file_place(int opened, const std::string& folder_path, std::string n)
        : path(folder_path + "/" + n), name(std::move(n)), folder(opened) {}

    std::string path, name;
    int folder = AT_FDCWD;
};

class file_descriptor {
public:
    file_descriptor() = default;
    file_descriptor(const std::string& path, int flags, mode_t rights = 0666)
        : file_descriptor(AT_FDCWD, path, flags, rights) {}
    file_descriptor(int folder, const std::string& name, int flags, mode_t rights = 0666)
        : handle_(::openat(folder, name.c_str(), flags | O_CLOEXEC, rights)) {}
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

// Calls f(name) for all that is in a folder. False if it can't be read.
template <class F>
bool for_each_name_in(int folder, const std::string& name, F f) {
    const int opened = ::openat(folder, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (opened < 0) return false;
    DIR* const list = ::fdopendir(opened);
    if (list == nullptr) {
        ::close(opened);
        return false;
    }
    while (const dirent* entry = ::readdir(list)) f(entry->d_name);
    ::closedir(list);
    return true;
}

// The temporary files of one file, beside it. A writer locks its own as long as it lives. So a file
// without a lock is that of a writer which was killed, and the next writer removes it.
class temporary_files {
public:
    explicit temporary_files(const file_place& of)
        : beside_(of.folder),
          folder_(of.name.substr(0, of.name.rfind('/') + 1)),
          prefix_(of.name.substr(folder_.size()) + ".tmp-") {}

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
        for_each_name_in(beside_, folder(), [this](std::string_view name) {
            if (is_temporary(name)) remove_if_dead(folder_ + std::string(name));
        });
    }

private:
    static constexpr int digits = 16;

    bool is_temporary(std::string_view name) const {
        return name.starts_with(prefix_) && name.size() == prefix_.size() + digits &&
               name.find_first_not_of("0123456789abcdef", prefix_.size()) == name.npos;
    }

    void remove_if_dead(const std::string& name) const {
        const file_descriptor file(beside_, name, O_RDWR | O_NONBLOCK | O_NOFOLLOW);
        if (file.get() >= 0 && lock(file, LOCK_NB)) ::unlinkat(beside_, name.c_str(), 0);
    }

    int beside_;                   // the open folder that the names are in
    std::string folder_, prefix_;  // the folder ends in a slash, or is empty
};

// A file that exists completely or not at all. It is written beside its destination under a name of
// its own, synchronized to the disk, and renamed. A process that dies before commit() leaves the
// old file. If several write at the same time, the last to commit wins.
class atomic_file {
public:
    explicit atomic_file(file_place place, mode_t rights = 0666)
        : place_(std::move(place)), rights_(rights), temporaries_(place_) {
        require_no_nul(place_.path.c_str(), "the path", place_.path);
        require_replaceable();
        temporaries_.remove_those_of_the_dead();
        while (!create()) {
        }
    }
    atomic_file(const atomic_file&) = delete;
    atomic_file& operator=(const atomic_file&) = delete;
    ~atomic_file() {
        if (!committed_) ::unlinkat(place_.folder, temporary_.c_str(), 0);
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
        if (::renameat(place_.folder, temporary_.c_str(), place_.folder, place_.name.c_str()) != 0)
            fail("cannot be put in its place");
        committed_ = true;
        const file_descriptor folder(place_.folder, temporaries_.folder(), O_RDONLY | O_DIRECTORY);
        if (folder.get() < 0 || ::fsync(folder.get()) != 0)
            fail("cannot be synchronized to the disk: its folder fails");
    }

private:
    // A rename would replace a device by a file, and opening a FIFO waits for its reader.
    void require_replaceable() const {
        struct stat status;
        if (::fstatat(place_.folder, place_.name.c_str(), &status, 0) == 0 &&
            !S_ISREG(status.st_mode))
            refuse_file(place_.path, "cannot be written: it is no regular file");
    }

    // False if the name was taken, or another writer removed the file before it was locked. Where
    // the file system has no locks, nobody removes it.
    bool create() {
        temporary_ = temporaries_.new_name();
        file_ = file_descriptor(place_.folder, temporary_, O_WRONLY | O_CREAT | O_EXCL, rights_);
        if (file_.get() < 0 && errno == EEXIST) return false;
        if (file_.get() < 0) fail("cannot be written");
        struct stat status;
        return !temporary_files::lock(file_) || ::fstat(file_.get(), &status) != 0 ||
               status.st_nlink > 0;
    }

    [[gnu::cold, noreturn]] void fail(const char* what) const {
        refuse_file(place_.path, what, ": ", std::strerror(errno));
    }

    file_place place_;
    mode_t rights_;
    temporary_files temporaries_;
    std::string temporary_;
    file_descriptor file_;
    bool committed_ = false;
};

}  // namespace hvd::inline v0::detail
