// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

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
        : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), name_(std::move(other.name_)) {}
    shared_memory& operator=(shared_memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(name_, other.name_);
        return *this;
    }
    ~shared_memory() {
        remove_name();
        if (data_ != nullptr) munmap(data_, bytes_);
    }

    // Under a name that nobody can guess, readable by this user alone. The memory is reserved here, so
    // that a full /dev/shm is a refusal now and not a SIGBUS later.
    static shared_memory create(std::size_t bytes) {
        std::uint64_t random[2] = {};
        if (getrandom(random, sizeof random, 0) != ssize_t(sizeof random)) return {};
        message name = text("/hvd-", random[0], "-", random[1]);
        const int file = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
        if (file < 0) return {};
        shared_memory result;
        result.name_ = std::move(name);
        if (posix_fallocate(file, 0, off_t(bytes)) == 0) result.map(file, bytes);
        close(file);
        if (!result) result.remove_name();
        return result;
    }

    static shared_memory open(const message& name, std::size_t bytes) {
        shared_memory result;
        const int file = shm_open(name.c_str(), O_RDWR, 0);
        if (file < 0) return result;
        struct stat status {};
        if (fstat(file, &status) == 0 && std::size_t(status.st_size) == bytes) result.map(file, bytes);
        close(file);
        return result;
    }

    // Once all have it open: nothing is left behind, however the processes end.
    void remove_name() {
        if (!name_.empty()) shm_unlink(name_.c_str());
        name_ = {};
    }

    explicit operator bool() const { return data_ != nullptr; }
    void* data() const { return data_; }
    const message& name() const { return name_; }

private:
    void map(int file, std::size_t bytes) {
        void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (memory == MAP_FAILED) return;
        data_ = memory;
        bytes_ = bytes;
    }

    void* data_ = nullptr;
    std::size_t bytes_ = 0;
    message name_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
