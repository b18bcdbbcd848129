// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <span>
#include <vector>

#include "../protocol/call_header.hpp"
#include "../protocol/failure_detector.hpp"
#include "mpi_messages.hpp"

namespace hvd::inline v0::detail {

// Some ranks of an MPI communicator that make no communicator of their own. MPI's calls for that
// wait for ever if a rank dies in them, and no MPI takes them back. So their messages go over the
// communicator of all, whose other ranks may be dead, and tags keep them apart from those of other
// members.
struct mpi_members : counted {
    MPI_Comm comm;
    std::uint64_t number;  // the same on all members, and new
    int rank;              // of this process, among the members
    std::vector<int> ranks;
    std::vector<std::uint64_t> hosts;  // by rank; members with equal numbers share memory
    shared<failure_detector> detector;

    mpi_members(MPI_Comm all, std::uint64_t which, int mine, std::vector<int> members,
                std::vector<std::uint64_t> hosts_of_members, shared<failure_detector> told)
        : comm(all),
          number(which),
          rank(mine),
          ranks(std::move(members)),
          hosts(std::move(hosts_of_members)),
          detector(std::move(told)) {}

    // Some of them, in the order given. This process is one.
    shared<mpi_members> subset(std::span<const int> chosen, int context) const {
        int mine = 0;
        std::vector<int> members;
        std::vector<std::uint64_t> places;
        for (const int r : chosen) {
            if (r == rank) mine = int(members.size());
            members.push_back(ranks[std::size_t(r)]);
            places.push_back(hosts[std::size_t(r)]);
        }
        const std::uint64_t which = hash().add(number).add(std::uint64_t(context)).value();
        return shared<mpi_members>::make(comm, which, mine, std::move(members), std::move(places),
                                         detector);
    }

    // The first rank on the host of another.
    int first_on_host(std::size_t of) const {
        std::size_t first = 0;
        while (hosts[first] != hosts[of]) ++first;
        return int(first);
    }

    // The first of their tags.
    int first_tag() const {
        void* most = nullptr;
        int is_known = 0;
        check_mpi(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &is_known),
                  "MPI_Comm_get_attr", rank);
        const int last = is_known != 0 ? *static_cast<const int*>(most) : 32767;
        const std::uint64_t choices = std::uint64_t(last) / mpi_messages::tags;
        return int(number % choices) * mpi_messages::tags;
    }
};

}  // namespace hvd::inline v0::detail
