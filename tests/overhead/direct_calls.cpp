// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// direct<mpi> against an MPI that only counts: each call makes one MPI call and allocates nothing.
// The argument sets the number of calls for instructions.py, which measures the instructions
// between them.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <hvd/mpi.hpp>

#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include <sys/mman.h>

extern "C" std::size_t stub_mpi_calls, stub_mpi_elements;

static std::size_t allocations = 0;

// It is not inlined, since the compiler would see malloc on one side of a pair only.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
    ++allocations;
    if (void* memory = std::malloc(bytes)) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using direct_world = hvd::communicator<hvd::direct<hvd::mpi>>;

struct cost {
    std::size_t calls, allocations;
    bool operator==(const cost&) const = default;
};

template <class F>
cost cost_of(F&& f) {
    const cost before{stub_mpi_calls, allocations};
    f();
    return {stub_mpi_calls - before.calls, allocations - before.allocations};
}

// The measured pair is out of line, so that neither is folded into its loop.
[[gnu::noinline]] void call_hvd(direct_world& world, std::vector<float>& x) {
    world.allreduce(x, hvd::sum);
}

[[gnu::noinline]] void call_raw(MPI_Comm comm, std::vector<float>& x) {
    if (MPI_Allreduce(MPI_IN_PLACE, x.data(), int(x.size()), MPI_FLOAT, MPI_SUM, comm) !=
        MPI_SUCCESS)
        std::abort();
}

[[gnu::noinline]] void broadcast_hvd(direct_world& world, std::vector<float>& x) {
    world.broadcast(x, hvd::root{0});
}

[[gnu::noinline]] void broadcast_raw(MPI_Comm comm, std::vector<float>& x) {
    if (MPI_Bcast(x.data(), int(x.size()), MPI_FLOAT, 0, comm) != MPI_SUCCESS) std::abort();
}

}  // namespace

TEST_CASE("direct<mpi> makes one MPI call for each call and allocates nothing") {
    auto world = direct_world::world();
    REQUIRE(world.size() == 2);
    std::vector<float> x(64, 1), y(64), all(128);
    const cost one{1, 0};
    CHECK(cost_of([&] { world.allreduce(x, hvd::sum); }) == one);
    CHECK(cost_of([&] { world.allreduce(x, hvd::average); }) == one);
    CHECK(cost_of([&] { world.allreduce(std::as_const(x), y, hvd::max); }) == one);
    CHECK(cost_of([&] { world.broadcast(x, hvd::root{1}); }) == one);
    CHECK(cost_of([&] { world.reduce(x, hvd::sum); }) == one);
    CHECK(cost_of([&] { world.scan(x, hvd::sum); }) == one);
    CHECK(cost_of([&] { world.exscan(std::as_const(x), y, hvd::average); }) == one);
    CHECK(cost_of([&] { world.allgather(x, hvd::into(all)); }) == one);
    CHECK(cost_of([&] { world.barrier(); }) == one);
}

TEST_CASE("counts beyond 2^31 are sent to the last element, in calls that MPI can take") {
    auto world = direct_world::world();
    const std::size_t count = (std::size_t(1) << 31) + 3;
    void* const memory =
        mmap(nullptr, count, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    const auto view = hvd::view(static_cast<std::int8_t*>(memory), count);
    std::size_t before = stub_mpi_elements;
    world.allreduce(view, hvd::sum);
    CHECK(stub_mpi_elements - before == count);
    before = stub_mpi_elements;
    world.broadcast(view, hvd::root{0});
    CHECK(stub_mpi_elements - before == count);
    const auto all = hvd::view(static_cast<std::int8_t*>(memory), 2 * count);
    before = stub_mpi_calls;
    CHECK_THROWS_AS(world.allgather(view, hvd::into(all)), hvd::usage_error);
    CHECK(stub_mpi_calls == before);
    munmap(memory, count);
}

int main(int argc, char** argv) {
    if (argc == 3) {
        auto world = direct_world::world();
        std::vector<float> x(16, 1);
        const MPI_Comm comm = world.native_handle();
        for (int i = std::atoi(argv[2]); i > 0; --i) {
            if (std::strcmp(argv[1], "hvd") == 0) call_hvd(world, x);
            if (std::strcmp(argv[1], "raw") == 0) call_raw(comm, x);
            if (std::strcmp(argv[1], "broadcast-hvd") == 0) broadcast_hvd(world, x);
            if (std::strcmp(argv[1], "broadcast-raw") == 0) broadcast_raw(comm, x);
        }
        return 0;
    }
    return doctest::Context(argc, argv).run();
}
