// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "../errors.hpp"

namespace hvd::inline v0::detail {

// A regular file, whose bytes several threads read at once, from any offset.
class input_file {
public:
    explicit input_file(std::string path) : path_(std::move(path)) {
        if (path_.find('\0') != path_.npos) refuse("the path has a NUL");
        handle_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (handle_ < 0) refuse(std::strerror(errno));
        struct stat status;
        const bool is_told = ::fstat(handle_, &status) == 0;
        if (is_told && S_ISREG(status.st_mode)) {
            size_ = std::uint64_t(status.st_size);
            changed_ = time_of_change(status);
            rights_ = status.st_mode & 0666;
            return;
        }
        const int code = errno;
        close();
        refuse(is_told ? "not a regular file" : std::strerror(code));
    }
    input_file(input_file&& other) noexcept
        : path_(std::move(other.path_)),
          handle_(std::exchange(other.handle_, -1)),
          size_(other.size_),
          changed_(other.changed_),
          rights_(other.rights_) {}
    input_file& operator=(input_file&& other) noexcept {
        std::swap(path_, other.path_);
        std::swap(handle_, other.handle_);
        std::swap(size_, other.size_);
        std::swap(changed_, other.changed_);
        std::swap(rights_, other.rights_);
        return *this;
    }
    ~input_file() { close(); }

    const std::string& path() const { return path_; }
    std::uint64_t size() const { return size_; }
    // The time of its last change, in nanoseconds.
    std::int64_t changed() const { return changed_; }
    mode_t rights() const { return rights_; }

    // The caller has compared the range with size(), unless the file has become shorter since.
    void read(std::uint64_t first, void* to, std::size_t n) const {
        auto* at = static_cast<char*>(to);
        while (n > 0) {
            const ssize_t got = ::pread(handle_, at, n, off_t(first));
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) refuse_at(first, std::strerror(errno));
            if (got == 0) refuse_at(first, "torn: the file ends here");
            at += got;
            first += std::uint64_t(got);
            n -= std::size_t(got);
        }
    }

    template <class... Parts>
    [[gnu::cold, noreturn]] void refuse(const Parts&... parts) const {
        throw data::file_error(-1, text(path_.c_str(), ": ", parts...));
    }
    template <class... Parts>
    [[gnu::cold, noreturn]] void refuse_at(std::uint64_t offset, const Parts&... parts) const {
        throw data::file_error(-1, text(path_.c_str(), ", byte ", offset, ": ", parts...));
    }
    void require_sample(std::size_t i, std::size_t samples) const {
        if (i >= samples) refuse("sample ", i, " of ", samples);
    }

private:
    static std::int64_t time_of_change(const struct stat& status) {
#if defined(__APPLE__)
        const timespec t = status.st_mtimespec;
#else
        const timespec t = status.st_mtim;
#endif
        return std::int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
    }

    void close() {
        if (handle_ >= 0) ::close(std::exchange(handle_, -1));
    }

    std::string path_;
    int handle_ = -1;
    std::uint64_t size_ = 0;
    std::int64_t changed_ = 0;
    mode_t rights_ = 0;
};

}  // namespace hvd::inline v0::detail
