// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <memory>

#include "../../backend/node_size.hpp"
#include "../../comm/communicator.hpp"
#include "../../platform/host_identity.hpp"
#include "../ranks.hpp"
#include "messages.hpp"
#include "policy.hpp"
#include "registration.hpp"

namespace hvd::inline v0 {

namespace detail {
class nccl_succession;
}

/// Ranks with a GPU each. NCCL moves device tensors between them. `communicator<nccl> gpus(world)`
/// makes it of the ranks of a communicator of any other backend, on the current device.
///
/// Calls are matched by their order on all ranks. The ranks compare plans when they make them. They
/// do not compare single calls. A rank that refuses a single call is late for the others, so give a
/// timeout. `.stream` means what it means to NCCL: 0 is the legacy default stream. After a failure
/// or a timeout the communicator is given up and refuses further calls; `shrink` continues without
/// the dead ranks.
/// **Threads**: one calling thread at a time. A rank that is alone calls NCCL only to scale.
/// @snippet tests/device/snippets.cpp nccl
template <>
class communicator<nccl> : public detail::device_ranks<communicator<nccl>, nccl>,
                           public detail::device_exchanges<communicator<nccl>> {
    using session_type = detail::nccl_session;

public:
    /// Makes an empty communicator, of which this rank is not a member.
    communicator() = default;

    /// Takes the ranks of `bootstrap`, with the current device of each. **Collective**.
    /// @throws hvd::nccl_error, hvd::cuda_error, hvd::usage_error for an unsuitable NCCL library or
    /// unsuitable options, hvd::mismatch_error for different ones, hvd::peer_error if other ranks
    /// failed or did not come within `options.timeout`.
    template <class Bootstrap>
    explicit communicator(communicator<Bootstrap>& bootstrap,
                          const communicator_options& options = {}, const nccl_options& own = {})
        : communicator(bootstrap, options, own, detail::nccl_beginning()) {}

    /// Takes over an NCCL communicator. It ends the communicator, also if this throws. It may be
    /// blocking or nonblocking. **Collective**: the ranks exchange their hosts by NCCL, unless
    /// `.node_size` or HVD_NODE_SIZE sets the nodes.
    communicator(ncclComm_t comm, adopt_t, const communicator_options& options = {}) {
        take(comm, true, options, detail::nccl_configuration());
        find_nodes();
    }
    /// Works with an NCCL communicator that its owner keeps alive, and does not use meanwhile.
    /// **Collective**, as `adopt` is.
    communicator(ncclComm_t comm, borrow_t, const communicator_options& options = {}) {
        take(comm, false, options, detail::nccl_configuration());
        find_nodes();
    }

    /// Returns NCCL's handle. It is null on a rank that is alone and has not scaled.
    ncclComm_t native_handle() const { return session().handle(); }

    /// Registers device memory of the user, such as the pool of an allocator (RMM, LibTorch), so
    /// that NCCL moves tensors in it without copies where the hardware can.
    ///
    /// It is no collective: each rank registers its own memory. NCCL copies less only if all ranks
    /// do. The memory outlives the registration.
    /// @throws hvd::nccl_error, hvd::usage_error for a null pointer or memory of the host.
    /// @snippet tests/device/snippets.cpp register_memory
    template <class X>
    device_registration register_memory(const X& memory) {
        if constexpr (detail::check_device_pair<nccl, X, X>()) {
            const auto view = to_view(memory);
            std::byte* const data = detail::bytes_of(view);
            if (data == nullptr && view.size() > 0)
                throw usage_error(rank(),
                                  detail::text("hvd: register_memory on rank ", rank(),
                                               ": null pointer with ", view.size(), " elements"));
            const detail::message why = detail::reason_to_refuse("the tensor", data, view.size(),
                                                                 rank(), session().device());
            if (!why.empty())
                throw usage_error(rank(),
                                  detail::text("hvd: register_memory on rank ", rank(), ": ", why));
            const std::size_t bytes = view.size() * sizeof(*view.data());
            return {session_, session().register_memory(data, bytes)};
        } else {
            return {};
        }
    }

    /// Makes one communicator for each colour, its ranks ordered by key, then by rank. It is empty
    /// for a negative colour.
    /// **Collective**, with no call under way.
    /// @throws hvd::usage_error for the communicator that `elastic::run` gives to its function.
    [[nodiscard("hvd: a communicator ends with its object")]] communicator split(int color,
                                                                                 int key = 0) {
        session().refuse_if_broken("split");
        refuse_in_job("split");
        if (size() == 1) return color < 0 ? communicator() : alone();
        const std::int64_t mine[] = {color, key};
        const auto members = detail::members_of_color(numbers_of_all("split", mine), color);
        const auto split_off = [=](ncclComm_t comm, ncclComm_t* result, ncclConfig_t* config) {
            return ncclCommSplit(comm, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, result, config);
        };
        auto host = session().split_host(color, key);
        auto part = derived(session().derive("split", "ncclCommSplit", split_off), members);
        if (part) part.session().connect(std::move(host));
        return part;
    }

    /// Makes a communicator of the ranks that are not `excluded`, in their order, after others
    /// died. **Collective** on those ranks alone. Calls under way are given up, and so is this
    /// communicator.
    /// @throws hvd::usage_error, before anything is given up, for a list with this rank, with no
    /// rank of this communicator, or with one twice, on a rank that is alone, and with NCCL before
    /// 2.28.7.
    communicator shrink(std::span<const int> excluded) {
        using namespace detail;  // an older header of NCCL lacks names below
        session().library().require(nccl_since::revoking, "shrink", rank());
        refuse_in_job("shrink");
        check_excluded(excluded);
        return shrunk(std::vector<int>(excluded.begin(), excluded.end()));
    }
    communicator shrink(std::initializer_list<int> excluded) {
        return shrink(std::span<const int>(excluded.begin(), excluded.size()));
    }

private:
    friend class detail::nccl_succession;
    using device_ranks::device_ranks;

    template <class Bootstrap>
    communicator(communicator<Bootstrap>& bootstrap, const communicator_options& options,
                 const nccl_options& own, detail::nccl_beginning beginning) {
        const int rank = bootstrap.rank(), size = bootstrap.size();
        detail::session& ranks = detail::access::session_of(bootstrap);
        const auto limit = detail::limit_of(options.timeout);
        session_ = detail::run_on_all(ranks, "communicator<nccl>", limit, [&] {
            detail::refuse_blocking_timeout(own, options, rank);
            const int device = detail::device_of_this_thread(rank);
            return std::make_shared<session_type>(rank, size, device, options,
                                                  detail::nccl_configuration(own, rank));
        });
        topology_ = place_of(bootstrap);
        if (size == 1) return;
        detail::agree_on_values(ranks, "communicator<nccl>", limit, [&](auto say) {
            say("version of NCCL", detail::nccl_version_text(session_->library().version()));
            session_->configuration().describe(say);
        });
        // Nothing that the ranks may refuse comes later: the next growth would take an id that is
        // not used.
        detail::run_on_all(ranks, "communicator<nccl>", limit, [&] {
            if (rank == 0) beginning.make_id(rank);
        });
        bootstrap.broadcast(tensor_view<std::byte>(reinterpret_cast<std::byte*>(&beginning.id),
                                                   {sizeof beginning.id}),
                            hvd::root{0}, {.timeout = options.timeout});
        session_->join_all(
            beginning,
            std::make_unique<detail::host_ranks_of<Bootstrap>>(detail::own_duplicate(bootstrap)),
            limit);
    }

    // A communicator of NCCL that no session owns yet.
    struct aborted {
        void operator()(ncclComm_t comm) const { ncclCommAbort(comm); }
    };
    using unclaimed = std::unique_ptr<std::remove_pointer_t<ncclComm_t>, aborted>;

    // The ranks that are left may have a host of their own.
    communicator shrunk(std::vector<int> list, detail::host_ranks* left = nullptr) {
        using namespace detail;  // an older header of NCCL lacks names below
        session().give_up("shrink");
        if (session().handle() == nullptr)
            throw peer_error(rank(),
                             text("hvd: shrink on rank ", rank(),
                                  ": NCCL had to abort the communicator: make one from the host's "
                                  "communicator of those left"),
                             {});
        std::vector<int> members;
        for (int r = 0; r < size(); ++r)
            if (detail::position_of(r, list) < 0) members.push_back(r);
        const auto make = [&](ncclComm_t comm, ncclComm_t* result, ncclConfig_t* config) {
            if (list.empty()) return ncclCommSplit(comm, 0, rank(), result, config);
            return ncclCommShrink(comm, list.data(), int(list.size()), result, config,
                                  NCCL_SHRINK_ABORT);
        };
        return derived(session().derive("shrink", "ncclCommShrink", make, left), members);
    }

    void refuse_in_job(const char* label) const {
        if (is_of_job_)
            throw usage_error(rank(),
                              detail::text("hvd: ", label, " on rank ", rank(),
                                           ": a communicator made of one of elastic::run would not "
                                           "hear that a rank is lost"));
    }

    void check_excluded(std::span<const int> excluded) const {
        const auto refuse = [this](const auto&... why) {
            throw usage_error(rank(), detail::text("hvd: shrink on rank ", rank(), ": ", why...));
        };
        if (size() == 1) refuse("this communicator has 1 rank, nobody can be excluded");
        for (std::size_t i = 0; i < excluded.size(); ++i) {
            const int other = excluded[i];
            if (other < 0 || other >= size())
                refuse("rank ", other, " is not a rank of this communicator of size ", size());
            if (other == rank()) refuse("rank ", other, " is this rank, which stays");
            if (std::ranges::count(excluded.first(i), other) > 0)
                refuse("rank ", other, " is excluded twice");
        }
    }

    void take(ncclComm_t comm, bool owned, const communicator_options& options,
              const detail::nccl_configuration& own) {
        if (comm == nullptr)
            throw usage_error(-1, "hvd: a communicator can't be made from a null ncclComm_t");
        unclaimed kept(owned ? comm : nullptr);
        int rank = -1, size = 0, device = 0;
        detail::check_nccl(ncclCommUserRank(comm, &rank), "ncclCommUserRank", -1);
        detail::check_nccl(ncclCommCount(comm, &size), "ncclCommCount", rank);
        detail::check_nccl(ncclCommCuDevice(comm, &device), "ncclCommCuDevice", rank);
        session_ = std::make_shared<session_type>(rank, size, device, options, own);
        kept.release();
        session_->take(comm, owned);
    }

    communicator alone() const {
        auto part = std::make_shared<session_type>(0, 1, session().device(), session().options(),
                                                   session().configuration());
        const std::int64_t node = 0;
        return communicator(std::move(part),
                            detail::topology_of(detail::numbered_node{0, {&node, 1}}));
    }

    // Ranks of a raw handle share a node if they share a host, or as it is declared.
    void find_nodes() {
        int node_size = 0;
        detail::call_header mine = detail::agreement_header("communicator<nccl>");
        const std::exception_ptr failure = detail::attempt(
            mine, [&] { node_size = detail::declared_node_size(session().options()); });
        mine.content = std::uint64_t(node_size);
        detail::exchange_after(failure, [&] {
            detail::agree_on(session(), mine, session().limit_for({}),
                             [&](auto say) { say(".node_size", detail::text(node_size)); });
        });
        const std::int64_t node =
            node_size > 0 ? rank() / node_size : std::int64_t(detail::host_identity());
        const auto nodes = numbers_of_all("communicator<nccl>", {&node, 1});
        topology_ = detail::topology_of(detail::numbered_node{rank(), nodes});
    }

    detail::table<std::int64_t> numbers_of_all(const char* name,
                                               detail::slice<const std::int64_t> mine) {
        return detail::numbers_of_all(session(), name, mine, session().limit_for({}));
    }

    // Makes a communicator derived from this one. It polls first, since rank and size are known
    // only then.
    communicator derived(ncclComm_t made, const std::vector<int>& members) const {
        if (made == nullptr) return {};
        unclaimed comm(made);
        ncclResult_t state = ncclInProgress;
        detail::backoff pauses(false);
        const detail::time_point limit = session().limit_for({});
        while (state == ncclInProgress) {
            detail::check_nccl(ncclCommGetAsyncError(made, &state), "ncclCommGetAsyncError",
                               rank());
            if (state == ncclInProgress && pauses.pause() && detail::now() > limit)
                throw timeout_error(
                    rank(),
                    detail::text(
                        "hvd: other ranks did not come in time to make a communicator with rank ",
                        rank()),
                    {});
        }
        communicator part;
        part.take(comm.release(), true, session().options(), session().configuration());
        part.topology_ = detail::topology_among(topology_, rank(), members);
        return part;
    }

    bool is_of_job_ = false;  // elastic::run has made it
};

}  // namespace hvd::inline v0
