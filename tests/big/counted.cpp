// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <hvd/threads.hpp>

// Tensors with more elements than an int counts. The endpoint counts the bytes that would be sent
// and sends nothing. No byte of the tensors exists, so touching one is a crash.

namespace {

// The addresses that the tensors would have.
const std::byte* nowhere_begin = nullptr;
const std::byte* nowhere_end = nullptr;

bool is_nowhere(const std::byte* data) { return nowhere_begin <= data && data < nowhere_end; }

// Rank 0 of two. Bytes outside the tensors (an entry, a count) come back as if the other rank had
// sent the same.
class counting_endpoint {
public:
    int rank() const { return 0; }
    int size() const { return 2; }
    void send(int, const std::byte* data, std::size_t bytes) {
        if (is_nowhere(data)) sent += bytes;
        else said_.assign(data, data + bytes);
    }
    void recv(int, std::byte* data, std::size_t bytes) {
        if (is_nowhere(data)) received += bytes;
        else awaited_.push_back({data, bytes});
    }
    bool poll() {
        for (const std::span<std::byte> place : awaited_) {
            REQUIRE(place.size() == said_.size());
            std::memcpy(place.data(), said_.data(), place.size());
        }
        awaited_.clear();
        return true;
    }
    bool pending(int) const { return false; }
    void cancel() noexcept { awaited_.clear(); }

    static inline std::size_t sent = 0, received = 0;

private:
    std::vector<std::byte> said_;
    std::vector<std::span<std::byte>> awaited_;
};

struct counting {
    using endpoint_type = counting_endpoint;
};

// A range of addresses without memory.
class nowhere {
public:
    explicit nowhere(std::size_t bytes)
        : bytes_(bytes),
          data_(
              mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
        REQUIRE(data_ != MAP_FAILED);
        nowhere_begin = static_cast<const std::byte*>(data_);
        nowhere_end = nowhere_begin + bytes;
    }
    nowhere(const nowhere&) = delete;
    nowhere& operator=(const nowhere&) = delete;
    ~nowhere() { munmap(data_, bytes_); }

    template <class T>
    T* as() const {
        return static_cast<T*>(data_);
    }

private:
    std::size_t bytes_;
    void* data_;
};

struct moved {
    std::size_t sent, received;
    friend bool operator==(const moved&, const moved&) = default;
};

template <class F>
moved by(F call) {
    counting_endpoint::sent = counting_endpoint::received = 0;
    hvd::communicator<counting> comm(std::make_unique<counting_endpoint>());
    call(comm);
    return {counting_endpoint::sent, counting_endpoint::received};
}

constexpr std::size_t many = (std::size_t(1) << 31) + 3, more = (std::size_t(1) << 33) + 1;

}  // namespace

TEST_CASE_TEMPLATE("every byte of a tensor beyond 2^31 elements is sent or received", T,
                   std::int8_t, float, double) {
    const nowhere memory(2 * more * sizeof(T));
    T* const data = memory.as<T>();
    for (const std::size_t n : {many, more}) {
        const std::size_t bytes = n * sizeof(T);
        const std::size_t none = 0;
        CHECK(by([&](auto& comm) { comm.broadcast(hvd::view(data, n), hvd::root{0}); }) ==
              moved{bytes, none});
        CHECK(by([&](auto& comm) { comm.broadcast(hvd::view(data, n), hvd::root{1}); }) ==
              moved{none, bytes});
        CHECK(by([&](auto& comm) {
                  comm.allgather(hvd::view(data, n), hvd::into(hvd::view(data, 2 * n)));
              }) == moved{bytes, bytes});
        CHECK(by([&](auto& comm) { comm.gather(hvd::view(data, n), hvd::root{1}); }) ==
              moved{bytes, none});
        const std::vector<std::size_t> to_the_other = {0, n};
        CHECK(by([&](auto& comm) { comm.scatter(hvd::view(data, n), to_the_other); }) ==
              moved{bytes, none});
        CHECK(by([&](auto& comm) {
                  comm.alltoall(hvd::view(data, n), to_the_other,
                                hvd::into(hvd::view(data + n, n)));
              }) == moved{bytes, bytes});
    }
}

TEST_CASE("a shape of more than 2^31 elements is one tensor") {
    const nowhere memory(many * 3);
    const auto matrix = hvd::view(memory.as<std::int8_t>(), hvd::shape(many, 3));
    CHECK(matrix.size() == many * 3);
    CHECK(by([&](auto& comm) { comm.broadcast(matrix); }).sent == many * 3);
}
