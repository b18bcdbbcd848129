// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include <hvd/arena.hpp>

#include "disagreement.hpp"
#include "reference.hpp"
#include "repetitions.hpp"

namespace handles_tests {

using namespace hvd_test;

// MPI handles: adopted, borrowed, refused and freed.

namespace {

// Communicators that were made and not freed, and the tags of MPI_Comm_create_group.
std::atomic<int> live = 0;
std::vector<int> tags_of_groups;
bool rank_is_unknown = false;  // the next MPI_Comm_rank fails
int late_answers = 0;          // of MPI_Test, once the next MPI_Ibcast has begun
bool answers_late = false;

int made(int code, const MPI_Comm* comm) {
    if (*comm != MPI_COMM_NULL) ++live;
    return code;
}

}  // namespace

extern "C" {
int MPI_Comm_dup(MPI_Comm of, MPI_Comm* comm) { return made(PMPI_Comm_dup(of, comm), comm); }
int MPI_Comm_idup(MPI_Comm of, MPI_Comm* comm, MPI_Request* request) {
    ++live;
    return PMPI_Comm_idup(of, comm, request);
}
int MPI_Comm_split(MPI_Comm of, int color, int key, MPI_Comm* comm) {
    return made(PMPI_Comm_split(of, color, key, comm), comm);
}
int MPI_Comm_split_type(MPI_Comm of, int type, int key, MPI_Info info, MPI_Comm* comm) {
    return made(PMPI_Comm_split_type(of, type, key, info, comm), comm);
}
int MPI_Comm_create_group(MPI_Comm of, MPI_Group group, int tag, MPI_Comm* comm) {
    tags_of_groups.push_back(tag);
    return made(PMPI_Comm_create_group(of, group, tag, comm), comm);
}
int MPI_Comm_rank(MPI_Comm comm, int* rank) {
    return std::exchange(rank_is_unknown, false) ? MPI_ERR_OTHER : PMPI_Comm_rank(comm, rank);
}
int MPI_Ibcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm,
               MPI_Request* request) {
    answers_late = late_answers > 0;
    return PMPI_Ibcast(data, count, type, root, comm, request);
}
int MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
    if (answers_late && late_answers-- > 0) {
        *done = 0;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return MPI_SUCCESS;
    }
    answers_late = false;
    return PMPI_Test(request, done, status);
}
int MPI_Comm_free(MPI_Comm* comm) {
    --live;
    return PMPI_Comm_free(comm);
}
}

namespace {

// Returns the communicators that are live once those that ended before are freed.
int settled() {
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < 20; ++i) {
        hvd::detail::mpi_leftovers::reap();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return live;
}

// Waits until no more communicators are live than there were: other ranks may end theirs later. The
// watchdog ends it otherwise.
void expect_none_left(int before) {
    for (hvd::detail::mpi_leftovers::reap(); live > before; hvd::detail::mpi_leftovers::reap())
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// An attribute on a handle. Its deletion shows that the handle was freed.
struct freed_flag {
    explicit freed_flag(MPI_Comm comm) {
        MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &note, &key, nullptr);
        MPI_Comm_set_attr(comm, key, &freed);
    }
    ~freed_flag() { MPI_Comm_free_keyval(&key); }
    static int note(MPI_Comm, int, void* flag, void*) {
        *static_cast<bool*>(flag) = true;
        return MPI_SUCCESS;
    }
    int key = MPI_KEYVAL_INVALID;
    bool freed = false;
};

MPI_Comm duplicate(MPI_Comm of) {
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Comm_dup(of, &comm);
    return comm;
}

// The two halves of the world, each other's remote group.
MPI_Comm between_halves() {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm half = MPI_COMM_NULL, between = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 0, &between);
    MPI_Comm_free(&half);
    return between;
}

std::set<std::string> names_in_shared_memory() {
    std::set<std::string> names;
    for (const auto& file : std::filesystem::directory_iterator("/dev/shm"))
        if (contains(file.path().filename(), "hvd-")) names.insert(file.path().filename());
    return names;
}

std::size_t shared_mappings() {
    std::ifstream maps("/proc/self/maps");
    std::size_t n = 0;
    for (std::string line; std::getline(maps, line);)
        n += contains(line, "memfd:hvd") || contains(line, "/hvd-");
    return n;
}

bool same_group(MPI_Comm a, MPI_Comm b) {
    int result = MPI_UNEQUAL;
    MPI_Comm_compare(a, b, &result);
    return result == MPI_CONGRUENT || result == MPI_IDENT;
}

}  // namespace

TEST_CASE_TEMPLATE("an adopted handle is used as it is and freed in the end", B, hvd::mpi,
                   hvd::direct<hvd::mpi>) {
    const MPI_Comm handle = duplicate(MPI_COMM_WORLD);
    freed_flag flag(handle);
    {
        hvd::communicator<B> comm(handle, hvd::adopt);
        CHECK(comm.native_handle() == handle);
        check_that_it_works(comm);
        CHECK(!flag.freed);
    }
    CHECK(flag.freed);
}

TEST_CASE_TEMPLATE("a borrowed handle stays its owner's, whose messages do not mix with hvd's", B,
                   hvd::mpi, hvd::direct<hvd::mpi>) {
    MPI_Comm handle = duplicate(MPI_COMM_WORLD);
    freed_flag flag(handle);
    int rank = 0, size = 0, from_left = -1;
    MPI_Comm_rank(handle, &rank);
    MPI_Comm_size(handle, &size);
    {
        hvd::communicator<B> comm(handle, hvd::borrow, {.node_size = 1});
        CHECK(comm.native_handle() == handle);
        MPI_Request receive = MPI_REQUEST_NULL;
        MPI_Irecv(&from_left, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, handle, &receive);
        check_that_it_works(comm);
        MPI_Send(&rank, 1, MPI_INT, (rank + 1) % size, 5, handle);
        MPI_Wait(&receive, MPI_STATUS_IGNORE);
    }
    CHECK(from_left == (rank + size - 1) % size);
    CHECK(!flag.freed);
    MPI_Comm_free(&handle);
}

TEST_CASE_TEMPLATE(
    "null handles, intercommunicators and the adoption of MPI's own communicators are refused", B,
    hvd::mpi, hvd::direct<hvd::mpi>) {
    thrown<hvd::usage_error>([] { hvd::communicator<B>(MPI_COMM_NULL, hvd::borrow); });
    thrown<hvd::usage_error>([] { hvd::communicator<B>(MPI_COMM_NULL, hvd::adopt); });
    for (const MPI_Comm of_mpi : {MPI_COMM_WORLD, MPI_COMM_SELF}) {
        const auto e = thrown<hvd::usage_error>([&] { hvd::communicator<B>(of_mpi, hvd::adopt); });
        if (e) CHECK(contains(e->what(), "use hvd::borrow"));
    }
    if (launched_ranks() < 2) return;
    MPI_Comm between = between_halves();
    const auto e = thrown<hvd::usage_error>([&] { hvd::communicator<B>(between, hvd::borrow); });
    if (e) CHECK(contains(e->what(), "intercommunicator"));
    thrown<hvd::usage_error>([&] { hvd::communicator<B>(between, hvd::adopt); });
    MPI_Comm_free(&between);
}

TEST_CASE("a communicator of one rank, and one in another order, are borrowed") {
    hvd::communicator<hvd::mpi> self(MPI_COMM_SELF, hvd::borrow);
    CHECK(self.size() == 1);
    check_that_it_works(self);

    MPI_Comm reversed = MPI_COMM_NULL;
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
    {
        hvd::communicator<hvd::mpi> comm(reversed, hvd::adopt);
        CHECK(comm.rank() == comm.size() - 1 - rank);
        check_that_it_works(comm);
    }
}

TEST_CASE("world() works on a duplicate of MPI_COMM_WORLD") {
    auto world = hvd::communicator<hvd::mpi>::world();
    CHECK(world.native_handle() != MPI_COMM_WORLD);
    CHECK(same_group(world.native_handle(), MPI_COMM_WORLD));
}

TEST_CASE("the user's error handler stays") {
    MPI_Comm handle = duplicate(MPI_COMM_WORLD);
    MPI_Comm_set_errhandler(handle, MPI_ERRORS_ARE_FATAL);
    {
        hvd::communicator<hvd::mpi> comm(handle, hvd::borrow);
        check_that_it_works(comm);
    }
    MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
    MPI_Comm_get_errhandler(handle, &handler);
    CHECK(handler == MPI_ERRORS_ARE_FATAL);
    MPI_Errhandler_free(&handler);
    MPI_Comm_free(&handle);
}

TEST_CASE("hundreds of communicators leave no handles behind") {
    for (int i = 0; i < 300; ++i) {
        auto world = hvd::communicator<hvd::mpi>::world({.node_size = i % 2});
        int x = 1;
        world.allreduce(x, hvd::sum);
        CHECK(x == world.size());
    }
}

TEST_CASE("communicators leave no handles behind, of whatever kind they are") {
    const int before = settled();
    hvd::communicator_options kinds[] = {{}, {.node_size = 1}, {.node_size = 2}, {}, {}};
    kinds[3].node_size = 1;
    kinds[3].mpi_between_nodes = true;
    kinds[4].node_size = 2;
    kinds[4].mpi_between_nodes = true;
    for (const hvd::communicator_options& options : kinds) {
        {
            auto world = communicator::world(options);
            check_that_it_works(world);
            auto half = world.split(world.rank() % 2);
            auto local = half.local();
            auto cross = world.cross();
            check_that_it_works(half);
        }
        expect_none_left(before);
    }
    if (launched_ranks() < 2) return;
    bool first = true;
    {
        hvd::communicator<hvd::direct<hvd::mpi>> direct(MPI_COMM_WORLD, hvd::borrow);
        first = direct.rank() == 0;
    }
    expect_none_left(before);
    thrown<hvd::mismatch_error>([&] { communicator::world({.node_size = first ? 1 : 2}); });
    expect_none_left(before);
}

TEST_CASE("communicators that one rank cannot make leave no handles behind") {
    const int before = settled();
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const auto expect_failure = [&](auto make) {
        rank_is_unknown = rank == size - 1;
        if (rank_is_unknown) thrown<hvd::mpi_error>(make);
        else thrown<hvd::peer_error>(make);
        CHECK(!rank_is_unknown);
    };
    expect_failure([] { communicator::world(); });
    CHECK(settled() == before);
    {
        auto world = communicator::world();
        const int with_world = settled();
        expect_failure([&] { world.split(0); });
        CHECK(settled() == with_world);
        check_that_it_works(world);
    }
    expect_none_left(before);
}

TEST_CASE("a rank that learns late why another one failed leaves no handles behind") {
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    auto world = communicator::world();
    const int before = settled();
    rank_is_unknown = rank == size - 1;
    late_answers = rank == 0 && size > 1 ? 300 : 0;
    if (rank_is_unknown) {
        thrown<hvd::mpi_error>([&] { world.split(0); });
    } else {
        const auto e = thrown<hvd::peer_error>([&] { world.split(0); });
        if (e) CHECK(contains(e->what(), "MPI_Comm_rank"));
    }
    CHECK(late_answers <= 0);
    CHECK(settled() == before);
    check_that_it_works(world);
}

TEST_CASE("communicators between nodes end in any order, and none waits for another rank") {
    constexpr hvd::communicator_options options{
        .destructor_timeout = std::chrono::nanoseconds(std::chrono::hours(1)), .node_size = 1};
    const int before = settled();
    {
        auto first = communicator::world(options), second = communicator::world(options);
        const int rank = first.rank(), last = first.size() - 1;
        int word = 0;
        if (rank == last) {
            second = {};
            first = {};
            if (last > 0) MPI_Send(&word, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
        } else {
            first = {};
            if (rank == 0) MPI_Recv(&word, 1, MPI_INT, last, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
    }
    expect_none_left(before);
}

TEST_CASE("hundreds of communicators between nodes end in other orders on other ranks") {
    const int before = settled();
    std::vector<communicator> some(4);
    int most = 0;
    for (int i = 0; i < hvd_test::repetitions(800, 150); ++i) {
        for (communicator& comm : some) comm = communicator::world({.node_size = 1});
        const int turn = some[0].rank() + i;
        for (int j = 0; j < 4; ++j)
            some[std::size_t((turn + (turn % 2 == 0 ? j : 4 - j)) % 4)] = {};
        most = std::max(most, live - before);
    }
    CHECK(most < 200);
    expect_none_left(before);
}

TEST_CASE("hvd's communicators return MPI's errors, and subsets have tags of their own") {
    on_ranks([](auto& comm) {
        MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
        MPI_Comm_get_errhandler(comm.native_handle(), &handler);
        CHECK(handler == MPI_ERRORS_RETURN);
        MPI_Errhandler_free(&handler);
        tags_of_groups.clear();
        auto first = comm.split(0), second = comm.split(0);
        REQUIRE(tags_of_groups.size() == 2);
        CHECK(tags_of_groups[0] != tags_of_groups[1]);
        for (const int tag : tags_of_groups) CHECK(tag >= hvd::detail::mpi_messages::tags);
    });
}

TEST_CASE("a forked child frees no handles of its parent") {
    for (const int node_size : {0, 1}) {
        auto comm = communicator::world({.node_size = node_size});
        if (const pid_t child = fork(); child == 0) {
            const int before = live;
            comm = {};
            _exit(live == before ? 0 : 1);
        } else {
            int status = -1;
            waitpid(child, &status, 0);
            CHECK(status == 0);
        }
        check_that_it_works(comm);
    }
}

TEST_CASE("options that differ between ranks are refused on all of them") {
    if (launched_ranks() < 2) return;
    const bool first = hvd::detail::mpi_endpoint::world({})->rank() == 0;
    const auto refused = [](const hvd::communicator_options& options, const std::string& name) {
        const auto e =
            thrown<hvd::mismatch_error>([&] { hvd::communicator<hvd::mpi>::world(options); });
        if (!e) return;
        CHECK(e->field() == name);
        REQUIRE(e->table().size() == std::size_t(launched_ranks()));
        CHECK(e->table()[0].second != e->table()[1].second);
    };
    refused({.node_size = first ? 1 : 2}, ".node_size");
    refused({.mpi_between_nodes = first}, ".mpi_between_nodes");
    refused({.shared_memory_bytes = first ? 16384u : 32768u}, ".shared_memory_bytes");
    const auto impossible = [&] {
        hvd::communicator<hvd::mpi>::world({.node_size = first ? -3 : 0});
    };
    if (first) {
        const auto e = thrown<hvd::usage_error>(impossible);
        if (e) CHECK(contains(e->what(), "-3"));
    } else {
        const auto e = thrown<hvd::peer_error>(impossible);
        if (e) CHECK(contains(e->what(), "-3"));
        if (e) CHECK(e->peers() == std::vector<int>{0});
    }
    on_ranks([](auto& comm) { check_that_it_works(comm); });
}

TEST_CASE("shared memory never has a name that a death could leave behind") {
    on_ranks([&](auto& comm) {
        std::atomic<bool> done = false;
        std::set<std::string> seen;
        std::thread looks([&] {
            while (!done) {
                seen.merge(names_in_shared_memory());
                std::this_thread::sleep_for(std::chrono::microseconds(200));  // others work, too
            }
        });
        for (int i = 0; i < 20; ++i) {
            auto all = comm.split(0);
            hvd::arena memory(all, 1 << 20);
        }
        done = true;
        looks.join();
        CHECK(seen.empty());
    });
}

TEST_CASE("a communicator of no shared memory, and its children, map none") {
    const std::size_t before = shared_mappings();
    {
        auto comm = hvd::communicator<hvd::mpi>::world({.shared_memory_bytes = 0});
        auto child = comm.split(0);
        CHECK(shared_mappings() == before);
        check_that_it_works(comm);
        check_that_it_works(child);
    }
    if (launched_ranks() < 2) return;
    auto comm = hvd::communicator<hvd::mpi>::world();
    CHECK(shared_mappings() > before);
}

TEST_CASE("mpi_environment beside a running MPI does not own it") {
    const hvd::mpi_environment second;
    CHECK(!second.owns_mpi());
    CHECK(second.thread_level() == hvd::thread_level::multiple);
}

TEST_CASE("a failing MPI call is an mpi_error with its name, code, text and place") {
    const auto e =
        thrown<hvd::mpi_error>([] { hvd::detail::check_mpi(MPI_ERR_RANK, "MPI_Send", 3); });
    if (!e) return;
    CHECK(e->api() == std::string("MPI_Send"));
    CHECK(e->code() == MPI_ERR_RANK);
    CHECK(e->rank() == 3);
    CHECK(contains(e->what(), "MPI_Send"));
    CHECK(contains(e->where().file_name(), "handles.cpp"));
}

}  // namespace handles_tests
