// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <hvd/tcp.hpp>

#include "hvd_test.hpp"
#include "tcp_ranks.hpp"

// A rank whose messages have one byte that no rank sends.

namespace foreign_bytes_tests {

using namespace std::chrono_literals;

// The byte of the next messages that the sender changes, and its new value by exclusive or.
struct change {
    std::size_t at = SIZE_MAX;
    unsigned char mask = 0;
};
change next_change;

class changed_messages : public hvd::detail::tcp_messages {
public:
    using basic_tcp_messages::basic_tcp_messages;

    void send(int peer, const std::byte* data, std::size_t bytes) {
        // A packet begins with the number of its bytes that are no data.
        std::uint32_t before_data = 0;
        if (bytes >= sizeof before_data) std::memcpy(&before_data, data, sizeof before_data);
        if (next_change.at >= before_data) return basic_tcp_messages::send(peer, data, bytes);
        copy_.assign(data, data + bytes);
        copy_[next_change.at] ^= std::byte(next_change.mask);
        basic_tcp_messages::send(peer, copy_.data(), bytes);
    }

private:
    std::vector<std::byte> copy_;
};
struct changed {
    using endpoint_type = hvd::detail::job_endpoint<changed_messages>;
};
using communicator = hvd::communicator<changed>;

// Errors are text that a person reads, and short. A name may have a letter that was changed.
bool is_plain(const std::string& text) {
    int letters = 0;
    for (const char c : text) letters += (c < ' ' || c > '~') && c != '\n';
    return letters <= 2 && text.size() < 600;
}

int complain(const change& c, const std::string& why) {
    std::fprintf(stderr, "byte %zu, mask %u: %s\n", c.at, c.mask, why.c_str());
    return 1;
}

// The last rank changes a byte of what it sends for one call. The others throw an error that can
// be read, or have a right result.
template <class Call>
int suffer(communicator& world, const change& c, Call call) {
    const bool is_sender = world.rank() == world.size() - 1;
    auto comm = world.split(0, world.rank());
    if (is_sender) next_change = c;
    int wrong = 0;
    try {
        if (!call(comm) && !is_sender) wrong = complain(c, "a wrong result");
    } catch (const hvd::error& e) {
        if (!is_plain(e.what())) wrong = complain(c, "an error with foreign memory");
    } catch (const std::exception& e) {
        wrong = complain(c, e.what());
    }
    next_change = {};
    return wrong;
}

// The bytes of such a packet that are no data: fewer than these.
constexpr std::size_t header_bytes = 64;

template <class Call>
void suffer_all(int ranks, int host_size, Call call) {
    INFO(ranks, " ranks, ", host_size, " on each host");
    hvd_test::tcp_ranks job(ranks, host_size);
    job.start([&](int) {
        auto world = communicator::world();
        int wrong = 0;
        for (std::size_t at = 0; at < header_bytes; ++at)
            for (const int mask : {1, 0x80, 0xff}) {
                wrong += suffer(world, {at, static_cast<unsigned char>(mask)}, call);
                world.barrier();
            }
        return wrong;
    });
    for (int r = 0; r < ranks; ++r) CHECK(job.wait_for(r) == 0);
}

TEST_CASE("a changed byte of a call's header is an error or nothing, in an allreduce") {
    for (const int host_size : {1, 2})
        suffer_all(host_size + 1, host_size, [](communicator& comm) {
            std::vector<float> x(3, float(comm.rank() + 1));
            comm.allreduce(x, hvd::sum, {.name = "gradient", .timeout = 2s});
            const int n = comm.size();
            return x == std::vector<float>(3, float(n * (n + 1) / 2));
        });
}

TEST_CASE("a changed byte of a call's header is an error or nothing, in an allgather") {
    suffer_all(2, 1, [](communicator& comm) {
        const std::vector<int> x(std::size_t(comm.rank() + 2), comm.rank());
        std::vector<int> all(5);
        comm.allgather(x, hvd::into(all), {.name = "gradient", .timeout = 2s});
        return all == std::vector<int>{0, 0, 1, 1, 1};
    });
}

}  // namespace foreign_bytes_tests
