// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../core/text.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Memory that processes of one user on one host map together; empty where the system refused.
class shared_memory {
public:
    shared_memory() = default;
    shared_memory(shared_memory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), name_(std::move(other.name_)),
          named_(std::exchange(other.named_, false)) {}
    shared_memory& operator=(shared_memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(name_, other.name_);
        std::swap(named_, other.named_);
        return *this;
    }
    ~shared_memory() {
        remove_name();
        if (data_ != nullptr) munmap(data_, bytes_);
    }

    static constexpr std::size_t whole_pages(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

    // Under a name that nobody can guess, readable by this user alone. [begin, end) is reserved here, so
    // that a full /dev/shm is a refusal now and not a SIGBUS later.
    static shared_memory create(std::size_t bytes, std::size_t begin, std::size_t end) {
        std::uint64_t random[2] = {};
        if (getrandom(random, sizeof random, 0) != ssize_t(sizeof random)) return {};
        message name = text("/hvd-", random[0], "-", random[1]);
        const int file = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
        if (file < 0) return {};
        shared_memory result;
        result.name_ = std::move(name);
        result.named_ = true;
        if (ftruncate(file, off_t(bytes)) == 0) result.map(file, bytes, begin, end);
        close(file);
        if (!result) result.remove_name();
        return result;
    }

    static shared_memory open(std::string_view name, std::size_t bytes, std::size_t begin, std::size_t end) {
        shared_memory result;
        message known = name;
        const int file = shm_open(known.c_str(), O_RDWR, 0);
        if (file < 0) return result;
        struct stat status {};
        if (fstat(file, &status) == 0 && std::size_t(status.st_size) == bytes) result.map(file, bytes, begin, end);
        close(file);
        if (result) result.name_ = std::move(known);
        return result;
    }

    // For the threads of this process.
    static shared_memory of_this_process(std::size_t bytes) {
        shared_memory result;
        if (bytes == 0) bytes = 1;
        void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return result;
        madvise(memory, bytes, MADV_HUGEPAGE);
        result.data_ = memory;
        result.bytes_ = bytes;
        return result;
    }

    // Once all have it open: nothing is left behind, however the processes end.
    void remove_name() {
        if (named_) shm_unlink(name_.c_str());
        named_ = false;
    }

    explicit operator bool() const { return data_ != nullptr; }
    void* data() const { return data_; }
    const message& name() const { return name_; }

private:
    void map(int file, std::size_t bytes, std::size_t begin, std::size_t end) {
        void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (memory == MAP_FAILED) return;
        madvise(memory, bytes, MADV_HUGEPAGE);  // where the system gives them
        data_ = memory;
        bytes_ = bytes;
        if (begin < end && !reserve(file, begin, end)) *this = {};
    }

    // Near the processor of the rank that reserves it.
    bool reserve(int file, std::size_t begin, std::size_t end) {
#ifdef MADV_POPULATE_WRITE
        if (madvise(static_cast<std::byte*>(data_) + begin, end - begin, MADV_POPULATE_WRITE) == 0) return true;
        if (errno != EINVAL) return false;  // since Linux 5.14
#endif
        return posix_fallocate(file, off_t(begin), off_t(end - begin)) == 0;
    }

    void* data_ = nullptr;
    std::size_t bytes_ = 0;
    message name_;
    bool named_ = false;  // by this process, and there still
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
