// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>

#include "../backend/mpi.hpp"
#include "../platform/host_identity.hpp"
#include "part.hpp"

namespace hvd::inline v0::detail {

// Ranks of MPI_COMM_WORLD, which lose members and win none. The membership finds who is lost, since
// most MPIs do not tell it. Messages go over one duplicate of MPI_COMM_WORLD in all epochs: see
// mpi_members.hpp.
template <>
class elastic_part<mpi> {
public:
    // All ranks of MPI_COMM_WORLD make theirs together.
    elastic_part(tcp_options own, const elastic::bounds& bounds) {
        if (!mpi_is_running())
            throw usage_error(
                -1,
                "hvd: elastic::run<hvd::mpi>: MPI is not running: make an hvd::mpi_environment");
        require_mpi_ranks();
        MPI_Comm_rank(MPI_COMM_WORLD, &own.rank);
        MPI_Comm_size(MPI_COMM_WORLD, &own.size);
        world_ = own.size;
        mpi_steps steps(limit_of(own.start_timeout));
        // MPI_Finalize would wait for the ranks that have not come.
        try {
            make_together(steps, own, bounds);
        } catch (const peer_error&) {
            mpi_ranks_end_apart = steps.left();
            throw;
        } catch (const mpi_error&) {
            mpi_ranks_end_apart = true;
            throw;
        }
        mpi_ranks_end_apart = true;
    }
    elastic_part(const elastic_part&) = delete;
    // Where all ranks have come to the end, MPI ends in order, too.
    ~elastic_part() {
        if (membership_ && membership_->has_ended() && members_ == world_)
            mpi_ranks_end_apart = false;
    }

    membership& own() { return *membership_; }

    communicator<mpi> communicator_of(const elastic_epoch& epoch,
                                      const shared<failure_detector>& detector,
                                      const communicator_options& options) {
        members_ = epoch.size;
        acknowledge_lost_ranks(comm_);
        std::vector<int> ranks;
        std::vector<std::uint64_t> hosts;
        for (const elastic_member& m : epoch.members) {
            ranks.push_back(int(m.started_as));
            hosts.push_back(m.place.host);
        }
        return communicator<mpi>::world(
            shared<mpi_members>::make(comm_, epoch.job_number, epoch.rank, std::move(ranks),
                                      std::move(hosts), detector),
            options);
    }

private:
    // The first rank tells the others.
    struct meeting_place {
        listening_place coordinator;
        shared_secret secret{};
    };

    void make_together(mpi_steps& steps, const tcp_options& own, const elastic::bounds& bounds) {
        comm_ = steps.duplicate(MPI_COMM_WORLD);
        MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
        if (own.rendezvous.empty()) meet(steps, own, bounds);
        else steps.together(comm_, [&] { membership_ = owner<membership>::make(own, bounds); });
    }
    bool are_on_one_host(mpi_steps& steps) const {
        const std::uint64_t mine = network_identity();
        std::vector<std::uint64_t> all;
        steps.together(comm_, [&] {
            all.resize(std::size_t(world_));
            steps.make_room((all.size() + 1) * sizeof mine);
        });
        steps.gather(comm_, &mine, sizeof mine, all.data());
        return mine != 0 && std::ranges::count(all, mine) == world_;
    }
    void meet(mpi_steps& steps, const tcp_options& own, const elastic::bounds& bounds) {
        is_of_one_host_ = are_on_one_host(steps);
        meeting_place place;
        std::vector<meeting_place> all;
        steps.together(comm_, [&] {
            all.resize(std::size_t(world_));
            steps.make_room((all.size() + 1) * sizeof place);
            if (own.rank != 0) return;
            place.secret = new_secret();
            come_to(place, own, bounds);
            place.coordinator = membership_->coordinator_place();
        });
        steps.gather(comm_, &place, sizeof place, all.data());
        steps.together(comm_, [&] {
            if (own.rank != 0) come_to(all[0], own, bounds);
        });
    }
    void come_to(const meeting_place& place, tcp_options own, const elastic::bounds& bounds) {
        own.rendezvous = "rank 0 of MPI_COMM_WORLD";
        own.secret_file.clear();
        own.secret = std::string(std::string_view(hex_of(place.secret)));
        membership_ = owner<membership>::make(own, bounds, place.coordinator, is_of_one_host_);
    }

    owner<membership> membership_;
    MPI_Comm comm_ = MPI_COMM_NULL;  // it stays for messages that are never received
    int world_ = 0, members_ = 0;
    bool is_of_one_host_ = false;
};

}  // namespace hvd::inline v0::detail
