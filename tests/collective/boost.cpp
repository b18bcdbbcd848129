// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <map>
#include <string>

#include <boost/serialization/map.hpp>
#include <boost/serialization/string.hpp>

#include <hvd/interop/boost_mpi.hpp>
#include <hvd/interop/boost_serialization.hpp>

#include "support.hpp"

namespace boost_tests {

using namespace hvd_test;

// hvd beside Boost.MPI, and with types that Boost.Serialization can write.

namespace {

struct state {
    int epoch = 0;
    std::map<std::string, double> metrics;
    friend bool operator==(const state&, const state&) = default;

    template <class Archive>
    void serialize(Archive& archive, unsigned) {
        archive & epoch & metrics;
    }
};

state of_rank(int rank) { return {rank, {{"loss", rank / 2.0}, {"accuracy", 1.0 / (rank + 1)}}}; }

}  // namespace

TEST_CASE_TEMPLATE("a Boost.MPI communicator is borrowed, and works on beside hvd's", B, hvd::mpi,
                   hvd::direct<hvd::mpi>) {
    const boost::mpi::communicator theirs;
    auto ours = hvd::borrow_boost<B>(theirs);
    CHECK(ours.rank() == theirs.rank());
    CHECK(ours.size() == theirs.size());
    check_that_it_works(ours);
    theirs.barrier();
    const boost::mpi::communicator back(ours.native_handle(), boost::mpi::comm_attach);
    CHECK(back.rank() == ours.rank());
}

TEST_CASE("a part of a Boost.MPI communicator is borrowed; an empty one is refused") {
    const boost::mpi::communicator world;
    auto half = hvd::borrow_boost<hvd::mpi>(world.split(world.rank() % 2));
    CHECK(half.rank() == world.rank() / 2);
    check_that_it_works(half);
    const boost::mpi::communicator nobody(MPI_COMM_NULL, boost::mpi::comm_attach);
    thrown<hvd::usage_error>([&] { hvd::borrow_boost<hvd::mpi>(nobody); });
}

TEST_CASE("types that Boost.Serialization can write are objects") {
    on_every_transport([](auto& comm) {
        state mine = of_rank(comm.rank());
        const auto all = comm.allgather_object(mine);
        for (int r = 0; r < comm.size(); ++r) CHECK(all[std::size_t(r)] == of_rank(r));
        comm.broadcast_object(mine, hvd::root{comm.size() - 1});
        CHECK(mine == of_rank(comm.size() - 1));
        std::vector<std::map<std::string, double>> nested(2, mine.metrics);
        comm.broadcast_object(nested);
        CHECK(nested[1] == of_rank(comm.size() - 1).metrics);
    });
}

TEST_CASE("torn bytes of a Boost archive are an error") {
    std::vector<std::byte> buffer;
    hvd::serializer<state>::write(buffer, of_rank(3));
    for (const std::size_t n :
         {std::size_t(0), std::size_t(5), buffer.size() / 2, buffer.size() - 1}) {
        std::span<const std::byte> torn(buffer.data(), n);
        thrown<std::exception>([&] { hvd::serializer<state>::read(torn); });
    }
}

}  // namespace boost_tests
