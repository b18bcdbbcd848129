// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// This file contains every line of code of docs/from_nccl.md and
// docs/reference/names_of_nccl.md, so that it compiles and behaves as these say, on the emulation
// of NCCL. pages.py looks for the lines.

#include <atomic>
#include <vector>

#include "../device/support.hpp"

namespace from_nccl_tests {

using namespace device_test;
using host_communicator = hvd::communicator<hvd::threads>;

namespace {

std::vector<float> repeated(int count, float value) {
    return std::vector<float>(std::size_t(count), value);
}

}  // namespace

TEST_CASE("NCCL's start and communicators have their form here") {
    for (const int ranks : {1, 2, 3, 4}) {
        std::atomic<int> trained = 0;
        const auto train = [&](host_communicator& world) {
            hvd::pin_device(world);
            hvd::communicator<hvd::nccl> gpus(world);
            CHECK(gpus.size() == ranks);
            CHECK(gpus.rank() == world.rank());
            CHECK(gpus.device() == world.rank());
            ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
            config.maxCTAs = 16;
            hvd::communicator<hvd::nccl> tuned(world, {.timeout = 10s}, {.config = config});
            const int color = gpus.rank() - 1, key = 0;
            auto part = gpus.split(color, key);
            CHECK(!bool(part) == (gpus.rank() == 0));
            auto some = gpus.subset({0});
            CHECK(bool(some) == (gpus.rank() == 0));
            ncclComm_t handle = gpus.native_handle();
            CHECK((handle == nullptr) == (ranks == 1));
            ++trained;
        };
        hvd::run_threads(ranks, train);
        CHECK(trained == ranks);
        CHECK(emulation::live_objects() == 0);
    }
}

TEST_CASE("raw communicators of NCCL have their form here") {
    for (const int ranks : {1, 2, 3, 4}) {
        ncclUniqueId id;
        ncclGetUniqueId(&id);
        hvd::run_threads(ranks, [&](host_communicator& world) {
            hvd::pin_device(world);
            ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
            config.blocking = 1;
            ncclComm_t comm = nullptr;
            ncclCommInitRankConfig(&comm, world.size(), id, world.rank(), &config);
            {
                hvd::communicator<hvd::nccl> beside(comm, hvd::borrow);
                CHECK(beside.rank() == world.rank());
            }
            hvd::communicator<hvd::nccl> owner(comm, hvd::adopt);
            CHECK(owner.size() == world.size());
        });
        CHECK(emulation::live_objects() == 0);
    }
}

TEST_CASE("NCCL's ends of communicators have their form here") {
    for (const int ranks : {2, 3, 4}) {
        hvd::run_threads(ranks, [](host_communicator& world) {
            hvd::communicator<hvd::nccl> gpus(world, {.timeout = 10s});
            gpus.barrier();
            world.barrier();  // no rank aborts while another one is in the call
            if (gpus.rank() == 1) return gpus.abort();
            auto left = gpus.shrink({1});
            CHECK(left.size() == gpus.size() - 1);
            CHECK(gpus.is_given_up());
            const tensor<float> x{1};
            left.allreduce(x.view(), hvd::sum);
            CHECK(x.values()[0] == float(left.size()));
        });
        CHECK(emulation::live_objects() == 0);
    }
}

TEST_CASE("NCCL's reductions have their form here") {
    on_gpus([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank();
        const auto total = float(n * (n + 1) / 2);
        const tensor<float> in(repeated(2, float(r + 1))), out(repeated(2, -1)),
            wide(repeated(2 * n, float(r + 1)));
        const auto x = in.view(), y = out.view(), all = wide.view();
        gpus.reduce_scatter(all, hvd::sum, hvd::into(x));
        CHECK(in.values() == repeated(2, total));
        gpus.allreduce(x, hvd::into(y), hvd::sum);
        CHECK(out.values() == repeated(2, total * float(n)));
        gpus.allreduce(x, hvd::sum);
        CHECK(in.values() == out.values());
        gpus.reduce(x, hvd::into(y), hvd::sum, hvd::root{0});
        CHECK(out.values()[1] == total * float(r == 0 ? n * n : n));
        gpus.allreduce(x, hvd::sum, {.prescale = 0.5});
        CHECK(in.values() == repeated(2, total * float(n * n) / 2));
        gpus.allreduce(x, hvd::sum, {.timeout = 30s});
        gpus.allreduce(hvd::fuse(x, y), hvd::average);
        gpus.allreduce(hvd::fuse(x, y), hvd::sum);
        CHECK(in.values() == repeated(2, total * float(n * n * n * n) / 2));

        cudaStream_t stream{};
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        auto pending = gpus.allreduce_async(x, hvd::sum, {.stream = stream});
        pending.wait(stream);
        cudaStreamSynchronize(stream);
        pending.wait();
        cudaStreamDestroy(stream);
        CHECK(in.values() == repeated(2, total * float(n * n * n * n * n) / 2));
    });
}

TEST_CASE("NCCL's movements have their form here") {
    on_gpus([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank();
        std::vector<float> ranks;
        for (int other = 0; other < n; ++other) ranks.push_back(float(other));
        const tensor<float> in{float(r)}, out{-1}, wide(repeated(n, -1)), other(repeated(n, -1));
        const auto x = in.view(), y = out.view(), all = wide.view(), received = other.view();
        gpus.allgather(x, hvd::into(all));
        CHECK(wide.values() == ranks);
        gpus.alltoall(all, hvd::into(received));
        CHECK(other.values() == repeated(n, float(r)));
        gpus.broadcast(x, hvd::root{0});
        CHECK(in.values()[0] == 0);
        gpus.scatter(all, hvd::into(x), hvd::root{0});
        CHECK(in.values()[0] == float(r));
        gpus.gather(x, hvd::into(all), hvd::root{0});
        gpus.barrier();
        CHECK(wide.values() == ranks);
        if (n == 1) return;

        if (r == 0) gpus.send(x, hvd::peer{1});
        if (r == 1) gpus.recv(hvd::into(y), hvd::peer{0});
        CHECK(out.values()[0] == (r == 1 ? 0 : -1));
        const int next = (r + 1) % n, before = (r + n - 1) % n;
        hvd::device_messages ring;
        ring.send(x, hvd::peer{next}).recv(hvd::into(y), hvd::peer{before});
        gpus.exchange(ring);
        CHECK(out.values()[0] == float(before));
    });
}

TEST_CASE("NCCL's memory has its form here") {
    on_gpus([](auto& gpus) {
        const tensor<float> in{float(gpus.rank())};
        const auto x = in.view();
        auto registered = gpus.register_memory(x);
        CHECK(bool(registered) == (gpus.size() > 1));
        hvd::device_arena arena(gpus, 1 << 20);
        auto w = arena.tensor<float>(hvd::shape(64, 16));
        CHECK(w.size() == 64 * 16);
    });
}

TEST_CASE("NCCL's errors have their form here") {
    on_gpus(
        [](auto& gpus) {
            const tensor<float> in{1};
            auto pending = gpus.allreduce_async(in.view(), hvd::sum, {.timeout = 10s});
            pending.wait();
            gpus.barrier();
            gpus.abort();
            CHECK(gpus.is_given_up());
            CHECK_THROWS_AS(gpus.allreduce(in.view(), hvd::sum), hvd::peer_error);
        },
        2);
}

}  // namespace from_nccl_tests
