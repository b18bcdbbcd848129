// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Messages from rank to rank.

#include <numeric>

#include "support.hpp"

namespace messages_tests {

using namespace device_test;

namespace {

using hvd::peer, hvd::into;

template <class T>
std::vector<T> counted(std::size_t count, int first) {
    std::vector<T> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = T(float(first + int(i)));
    return values;
}

// An element that NCCL does not know.
struct point {
    float x, y, z;
    bool operator==(const point&) const = default;
};

}  // namespace

}  // namespace messages_tests

template <>
struct hvd::dtype_traits<messages_tests::point> : hvd::transport_only<messages_tests::point> {
    static constexpr std::string_view name = "point";
};

namespace messages_tests {

TEST_CASE_TEMPLATE("a rank sends each rank above it a tensor of another length", T, float, int,
                   std::uint8_t, hvd::bfloat16, std::int16_t) {
    on_gpus(
        [](auto& gpus) {
            const int n = gpus.size(), r = gpus.rank();
            for (int from = 0; from < r; ++from) {
                const tensor<T> x(std::vector<T>(std::size_t(10 * from + r), T(0.f)));
                gpus.recv(into(x.view()), peer{from});
                CHECK(x.values() == counted<T>(std::size_t(10 * from + r), 7 * from + r));
            }
            for (int to = r + 1; to < n; ++to) {
                const tensor<T> x(counted<T>(std::size_t(10 * r + to), 7 * r + to));
                gpus.send(x.view(), peer{to});
            }
        },
        2);
}

TEST_CASE("messages between two ranks arrive in their order, also of elements unknown to NCCL") {
    on_gpus(
        [](auto& gpus) {
            const int n = gpus.size(), r = gpus.rank();
            const int next = (r + 1) % n, before = (r + n - 1) % n;
            const float a = float(r), b = float(before);
            const tensor<point> first{{a, 1, 2}, {a, 3, 4}}, second{{a, 5, 6}};
            const tensor<point> one(std::vector<point>(2)), two(std::vector<point>(1));
            hvd::device_messages ring;
            ring.send(first.view(), peer{next}).recv(into(one.view()), peer{before});
            ring.send(second.view(), peer{next}).recv(into(two.view()), peer{before});
            CHECK(ring.size() == 4);
            for (int step = 0; step < 2; ++step) gpus.exchange(ring);
            CHECK(one.values() == std::vector<point>{{b, 1, 2}, {b, 3, 4}});
            CHECK(two.values() == std::vector<point>{{b, 5, 6}});
        },
        2);
}

TEST_CASE("neighbours exchange their edges, on a stream and by requests") {
    on_gpus([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank();
        cudaStream_t stream{};
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        const tensor<double> left{double(10 * r)}, right{double(10 * r + 1)}, from_left{-1},
            from_right{-1};
        cudaStreamSynchronize(nullptr);
        hvd::device_messages edges;  // a rank at the end has one neighbour, or none
        if (r > 0) edges.send(left.view(), peer{r - 1}).recv(into(from_left.view()), peer{r - 1});
        if (r < n - 1)
            edges.recv(into(from_right.view()), peer{r + 1}).send(right.view(), peer{r + 1});
        gpus.exchange_async(edges, {.stream = stream}).wait(stream);
        cudaStreamSynchronize(stream);
        CHECK(from_left.values()[0] == (r > 0 ? 10 * (r - 1) + 1 : -1));
        CHECK(from_right.values()[0] == (r < n - 1 ? 10 * (r + 1) : -1));
        if (n > 1 && r < 2) {
            auto pending = r == 0 ? gpus.send_async(right.view(), peer{1})
                                  : gpus.recv_async(into(from_left.view()), peer{0});
            pending.wait();
            if (r == 1) CHECK(from_left.values()[0] == 1);
        }
        const tensor<int> sum{1};  // messages and collectives share one order
        gpus.allreduce(sum.view(), hvd::sum);
        CHECK(sum.values()[0] == n);
        cudaStreamDestroy(stream);
    });
}

TEST_CASE("a message without elements is none") {
    on_gpus([](auto& gpus) {
        float* const nothing = nullptr;
        if (gpus.size() == 1) return;
        if (gpus.rank() == 0) gpus.send(hvd::device_view(nothing, 0), peer{1});
        if (gpus.rank() == 1) gpus.recv(into(hvd::device_view(nothing, 0)), peer{0});
        gpus.exchange({});
        CHECK(emulation::calls_of("ncclSend") == 0);
        CHECK(emulation::calls_of("ncclRecv") == 0);
    });
}

TEST_CASE("messages that this rank can see to be wrong are refused before anything is sent") {
    on_gpus([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank(), other = (r + 1) % n;
        const tensor<float> x{1, 2, 3, 4};
        float* const nothing = nullptr;
        const auto refused = [&](auto call, const char* why) {
            CHECK_THROWS_WITH_AS(call(), doctest::Contains(why), hvd::usage_error);
        };
        refused([&] { gpus.send(x.view(), peer{n}); }, "is not a rank of this communicator");
        refused([&] { gpus.recv(into(x.view()), peer{-1}); }, "recv on rank");
        refused([&] { gpus.send(x.view(), peer{n}, {.name = "edge"}); }, "send 'edge' on rank");
        refused([&] { gpus.send(x.view(), peer{r}); }, "is this rank itself");
        const auto negative = hvd::time_span::of_nanoseconds(-2);
        refused([&] { gpus.exchange({}, {.timeout = negative}); }, ".timeout is -2 ns, and must");
        if (n > 1) {
            refused([&] { gpus.send(hvd::device_view(nothing, 3), peer{other}); },
                    "null pointer with 3 elements");
            hvd::device_messages twice;
            twice.send(hvd::device_view(x.data(), 2), peer{other});
            twice.recv(into(hvd::device_view(x.data() + 1, 3)), peer{other});
            refused([&] { gpus.exchange(twice); }, "overlaps that of 2 elements to rank");
            hvd::device_messages many;
            for (int i = 0; i < 1025; ++i) many.send(x.view(), peer{other});
            refused([&] { gpus.exchange(many); }, "1025 messages, at most 1024");
        }
        CHECK(emulation::calls_of("ncclSend") == 0);
        CHECK(emulation::calls_of("ncclRecv") == 0);
        gpus.barrier();
    });
}

TEST_CASE("as many messages as may travel together arrive") {
    on_gpus(
        [](auto& gpus) {
            constexpr int each_way = int(hvd::detail::tuning::nccl_operations / 2);
            const int n = gpus.size(), r = gpus.rank(), next = (r + 1) % n, last = (r + n - 1) % n;
            std::vector<float> numbers, expected;
            for (int i = 0; i < each_way; ++i) {
                numbers.push_back(float(each_way * r + i));
                expected.push_back(float(each_way * last + i));
            }
            const tensor<float> x(numbers), y(std::vector<float>(each_way, -1));
            hvd::device_messages all;
            for (int i = 0; i < each_way; ++i) {
                all.send(hvd::device_view(x.data() + i, 1), peer{next});
                all.recv(into(hvd::device_view(y.data() + i, 1)), peer{last});
            }
            gpus.exchange(all);
            CHECK(y.values() == expected);
        },
        2);
}

TEST_CASE("messages from and to neighbouring memory do not overlap") {
    on_gpus(
        [](auto& gpus) {
            const int n = gpus.size(), r = gpus.rank(), next = (r + 1) % n, last = (r + n - 1) % n;
            const float mine = float(r);
            const tensor<float> x{-1, -1, mine, mine, -1, -1};
            hvd::device_messages all;
            all.send(hvd::device_view(x.data() + 2, 2), peer{next});
            all.recv(into(hvd::device_view(x.data(), 2)), peer{last});
            all.send(hvd::device_view(x.data() + 3, 1), peer{last});
            all.recv(into(hvd::device_view(x.data() + 4, 1)), peer{next});
            gpus.exchange(all);
            const float from_last = float(last), from_next = float(next);
            CHECK(x.values() ==
                  std::vector<float>{from_last, from_last, mine, mine, from_next, -1});
        },
        3);
}

TEST_CASE(
    "a rank that never sends is noticed at the timeout of the call, though others have none") {
    on_gpus(
        [](auto& gpus) {
            const tensor<float> x{1};
            if (gpus.rank() == 0)
                CHECK_THROWS_WITH_AS(gpus.recv(into(x.view()), peer{1}, {.timeout = 100ms}),
                                     doctest::Contains("recv on rank 0"), hvd::peer_error);
        },
        2, {});
}

}  // namespace messages_tests
