// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include <unistd.h>

#include "../core/lean/handles.hpp"
#include "../core/settings/launched_ranks.hpp"
#include "../core/tuning.hpp"
#include "../platform/host_identity.hpp"
#include "../platform/mpi_api.hpp"
#include "../platform/mpi_names.hpp"
#include "../platform/mpi_types.hpp"
#include "../protocol/received_headers.hpp"
#include "../transport/node_map.hpp"
#include "concept.hpp"
#include "mpi_leftovers.hpp"
#include "mpi_members.hpp"
#include "mpi_messages.hpp"
#include "mpi_steps.hpp"
#include "node_memory.hpp"
#include "node_size.hpp"

namespace hvd::inline v0 {
namespace detail {

// The ranks that a launcher has started are those of MPI_COMM_WORLD. MPI runs.
// @throws hvd::usage_error if this process is alone in its world, and not the only one
[[gnu::cold]] inline void require_mpi_ranks() {
    int size = 0;
    check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size", -1);
    if (size > 1) return;
    refuse_to_be_alone("mpi", true, [](const launched_ranks& launched) {
        if (launched.variable[0] == 'H')
            return text("start it by 'hvdrun --backend mpi' or by mpiexec, or use hvd::tcp");
        return text("it is compiled with ", compiled_mpi(), ", the library that runs is ",
                    running_mpi(), ", and the launcher is ", launcher_that_sets(launched.variable),
                    ": start it by the launcher of its own MPI, or compile it with the "
                    "launcher's; srun needs --mpi=pmix or --mpi=pmi2; a container needs the "
                    "launcher's MPI inside");
    });
}

// An MPI communicator as an endpoint: messages between any two ranks, and shared memory for the
// ranks of each node.
class mpi_endpoint {
public:
    // Takes over a handle, or makes a duplicate of it. All ranks of the handle get an endpoint, or
    // none does.
    static owner<mpi_endpoint> of(const MPI_Comm& handle, adopt_t,
                                  const communicator_options& options) {
        return made<mpi_endpoint>(adoptable(handle), false, options);
    }
    static owner<mpi_endpoint> of(const MPI_Comm& handle, borrow_t,
                                  const communicator_options& options) {
        return made<mpi_endpoint>(checked(handle), true, options);
    }

    using environment_type = mpi_environment;  // of the process-wide communicator

    static owner<mpi_endpoint> world(const communicator_options& options) {
        require_running();
        require_mpi_ranks();
        auto endpoint = of(MPI_COMM_WORLD, borrow, options);
        endpoint->show_own_handle();
        return endpoint;
    }

    static owner<mpi_endpoint> world(const shared<mpi_members>& members,
                                     const communicator_options& options) {
        require_running();
        owner<mpi_endpoint> made(new mpi_endpoint(window_of(options)));
        made->steps_ = mpi_steps(limit_of(options.timeout));
        made->set_up(members);
        made->find_place(options);
        return made;
    }

    mpi_endpoint(const mpi_endpoint&) = delete;
    mpi_endpoint& operator=(const mpi_endpoint&) = delete;

    ~mpi_endpoint() {
        if (!mpi_is_running() || getpid() != process_) return;
        if (tells_end_to_ != nullptr) mpi_leftovers::tell_no_more(tells_end_to_);
        if (group_ != MPI_GROUP_NULL) MPI_Group_free(&group_);
        mpi_leftovers::end(std::move(messages_));
    }

    // When MPI_Finalize begins, `tell(self)` is called. Once at most.
    void tell_end(void (*tell)(void*) noexcept, void* self) {
        if (mpi_leftovers::tell_end(tell, self)) tells_end_to_ = self;
    }

    static void note_death() noexcept { mpi_rank_has_died.store(true); }

    int rank() const { return rank_; }
    int size() const { return size_; }
    int node_of(int rank) const { return nodes_[std::size_t(rank)]; }
    bool threaded() const { return mpi_thread_level() == MPI_THREAD_MULTIPLE; }
    const shm_region* region() const { return memory_.region(); }
    MPI_Comm native_handle() const { return native_; }

    void send(int peer, const std::byte* data, std::size_t bytes) {
        messages_->send(peer, data, bytes);
    }
    void recv(int peer, std::byte* data, std::size_t bytes) {
        messages_->receive(peer, data, bytes);
    }
    // A message of at most so many bytes may fill a larger recv.
    static constexpr std::size_t fills_larger = tuning::mpi_message_bytes;
    bool poll() { return messages_->poll(); }
    bool pending(int peer) const { return messages_->pending(peer); }
    void cancel() noexcept { messages_->cancel(); }
    std::byte* provide(std::byte* old, std::size_t bytes) { return messages_->provide(old, bytes); }

    std::uint64_t sends_begun(int peer) const { return messages_->sends_begun(peer); }
    std::uint64_t receives_begun(int peer) const { return messages_->receives_begun(peer); }
    bool send_notice(int peer, const failure_notice& notice) noexcept {
        return messages_->send_notice(peer, notice);
    }
    bool receive_notice(failure_notice& notice) { return messages_->receive_notice(notice); }
    std::vector<int> lost(message& why) {
        std::vector<int> ranks;
        if (!members_ || !members_->detector->has_detected()) return ranks;
        for (int p = 0; p < size_; ++p)
            if (p != rank_ && pending(p)) ranks.push_back(p);
        why = "a rank is lost or has left, as others have told";
        return ranks;
    }

    // As in node_memory.
    const shared<segments>& arenas() const { return memory_.arenas(); }
    template <header_channel C>
    std::byte* share(C& channel, std::span<const std::size_t> bytes) {
        return memory_.share(channel, *this, bytes);
    }
    void unshare(std::byte* part) noexcept {
        if (getpid() == process_) memory_.unshare(part);
    }

    // A channel of protocol/agreement.hpp, before there is a session. The limit is that of the
    // making.
    [[gnu::cold]] table<call_header> exchange_headers(const call_header& mine, time_point) const {
        if (members_) return headers_by_messages(mine);
        table<call_header> all;
        together([&] {
            all = table<call_header>(static_cast<std::size_t>(size_));
            steps_.make_room((all.size() + 1) * sizeof mine);
        });
        leaving_messages([&] { steps_.gather(comm_, &mine, sizeof mine, all.data()); });
        replace_other_bytes(all);
        return all;
    }

    // Runs the last steps of the making of a communicator, which may fail on this rank alone.
    // Where they do, all ranks throw.
    template <class F>
    void settle(F f) {
        together(f);
        steps_ = mpi_steps();
    }

    // Uses MPI's own allreduce among the ranks of this local rank.
    bool can_allreduce_across(dtype id, int op) const {
        const bool logical = op == op::logical_and::id || op == op::logical_or::id;
        if (id == dtype::boolean && !logical) return false;
        return by_library_ && mpi_datatype(id) != MPI_DATATYPE_NULL &&
               mpi_operation(op) != MPI_OP_NULL;
    }
    void allreduce_across(std::byte* data, std::size_t count, dtype id, int op) {
        const MPI_Datatype type = mpi_datatype(id);
        int bytes = 0;
        check(MPI_Type_size(type, &bytes), "MPI_Type_size");
        constexpr std::size_t most = tuning::mpi_largest_count;
        for (std::size_t begin = 0; begin < count; begin += most) {
            const int n = int(count - begin < most ? count - begin : most);
            std::byte* const at = data + begin * std::size_t(bytes);
            check(MPI_Allreduce(MPI_IN_PLACE, at, n, type, mpi_operation(op), across()),
                  "MPI_Allreduce");
        }
    }

    // The endpoint of a subset of the ranks, for one of them, before MPI knows of the subset. All
    // that its ranks allocate by themselves is allocated here. `join` makes the rest: it waits for
    // the other ranks of the subset, until one of them is gone, if `gone` tells that.
    [[gnu::cold]] owner<mpi_endpoint> prepare_subset(std::span<const int> ranks, int context,
                                                     time_point limit) const {
        return prepared<mpi_endpoint>(ranks, context, limit);
    }
    template <class F>
    void give_up_when(const F& gone) {
        steps_.give_up_when(gone);
    }
    [[gnu::cold]] void join() {
        if (!members_) create();
        if (window_ > 0) make_area();
    }

    owner<mpi_endpoint> subset(std::span<const int> ranks, int context) const {
        auto endpoint = prepare_subset(ranks, context, never);
        endpoint->join();
        return endpoint;
    }

protected:
    // With a window of 0 bytes no memory is shared.
    explicit mpi_endpoint(std::size_t window)
        : messages_(owner<mpi_messages>::make(MPI_COMM_NULL)), window_(window) {}

    template <class Endpoint>
    static owner<Endpoint> made(MPI_Comm handle, bool duplicates,
                                const communicator_options& options) {
        mpi_steps steps(limit_of(options.timeout));
        MPI_Comm comm = duplicates ? MPI_COMM_NULL : handle;
        owner<Endpoint> endpoint;
        mpi_endpoint* made = nullptr;
        try {
            if (duplicates) comm = steps.duplicate(handle);
            steps.together(comm, [&] {
                endpoint = owner<Endpoint>(new Endpoint(Endpoint::window_of(options)));
                made = endpoint.get();
                made->native_ = handle;
                made->set_up(comm);
            });
        } catch (...) {
            if (made != nullptr) made->messages_->comm = MPI_COMM_NULL;
            if (comm != MPI_COMM_NULL && !steps.left()) MPI_Comm_free(&comm);
            throw;
        }
        made->steps_ = std::move(steps);
        made->find_place(options);
        return endpoint;
    }
    // The user has no handle of its own.
    void show_own_handle() { native_ = comm_; }

    static std::size_t window_of(const communicator_options& options) {
        return window_bytes_of(options);
    }

    template <class Endpoint>
    owner<Endpoint> prepared(std::span<const int> ranks, int context, time_point limit) const {
        owner<Endpoint> endpoint(new Endpoint(window_));
        mpi_endpoint& made = *endpoint;
        made.steps_ = mpi_steps(limit);
        made.nodes_ = nodes_among(ranks);
        made.by_library_ = by_library_;
        made.memory_ = memory_.for_subset();
        if (members_) {
            made.set_up(members_->subset(ranks, context));
            return endpoint;
        }
        made.parent_ = comm_;
        made.context_ = context;
        MPI_Group all = MPI_GROUP_NULL;
        check(MPI_Comm_group(comm_, &all), "MPI_Comm_group");
        const int included = MPI_Group_incl(all, int(ranks.size()), ranks.data(), &made.group_);
        MPI_Group_free(&all);
        check(included, "MPI_Group_incl");
        return endpoint;
    }

    [[gnu::cold]] void create() {
        steps_.begin_owed(MPI_COMM_WORLD);
        // The tag differs from hvd's own: receives and probes of those would find Open MPI's
        // messages for it.
        const int created = MPI_Comm_create_group(
            parent_, group_, mpi_messages::tags + context_ % 32000, &messages_->comm);
        MPI_Group_free(&group_);
        check(created, "MPI_Comm_create_group");
        comm_ = native_ = messages_->comm;
        together([&] { set_up(); });
    }

    void gather_headers(const call_header& mine, call_header* all) const {
        constexpr int bytes = sizeof mine;
        check(MPI_Allgather(&mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, comm_), "MPI_Allgather");
    }

    // Runs a part of the making of this endpoint.
    template <class F>
    void together(F f) const {
        if (members_) run_on_all(*this, making, never, f);
        else leaving_messages([&] { steps_.together(comm_, f); });
    }
    template <class F>
    void leaving_messages(F f) const {
        try {
            f();
        } catch (...) {
            if (steps_.left()) messages_->cancel();
            throw;
        }
    }

    void find_place(const communicator_options& options) {
        by_library_ = options.mpi_between_nodes;
        const bool declared = agreed_node_size(*this, making, options) > 0;
        if (by_library_ && members_)
            throw usage_error(rank_,
                              "hvd: .mpi_between_nodes: MPI's own collectives wait for ever for a "
                              "lost rank, so that an elastic job can't use them");
        together([&] { nodes_ = nodes_of_one_host(size_, options); });
        if (!declared) find_nodes();
        if (window_ > 0) make_area();
    }

    static void require_running() {
        if (!mpi_is_running())
            throw usage_error(
                -1,
                "hvd: MPI is not running: make an hvd::mpi_environment first (or call MPI_Init), "
                "and no communicator after MPI_Finalize");
    }

    static MPI_Comm checked(MPI_Comm handle) {
        require_running();
        if (handle == MPI_COMM_NULL)
            throw usage_error(-1, "hvd: a communicator can't be made from MPI_COMM_NULL");
        int between_groups = 0;
        check_mpi(MPI_Comm_test_inter(handle, &between_groups), "MPI_Comm_test_inter", -1);
        if (between_groups != 0)
            throw usage_error(-1,
                              "hvd: a communicator can't be made from an MPI intercommunicator");
        return handle;
    }

    // hvd frees what it adopts, and MPI does not let anybody free its own communicators.
    static MPI_Comm adoptable(MPI_Comm handle) {
        checked(handle);
        if (handle == MPI_COMM_WORLD || handle == MPI_COMM_SELF)
            throw usage_error(
                -1, text("hvd: ", handle == MPI_COMM_WORLD ? "MPI_COMM_WORLD" : "MPI_COMM_SELF",
                         " can't be adopted, for it belongs to MPI: use hvd::borrow"));
        return handle;
    }

    std::vector<int> nodes_among(std::span<const int> ranks) const {
        std::vector<int> nodes(ranks.size());
        for (std::size_t i = 0; i < ranks.size(); ++i) nodes[i] = node_of(ranks[i]);
        return nodes;
    }

    void check(int code, const char* api,
               std::source_location where = std::source_location::current()) const {
        check_mpi(code, api, rank_, where);
    }

    MPI_Comm comm_ = MPI_COMM_NULL;
    int rank_ = -1, size_ = 0;

private:
    void set_up(MPI_Comm comm) {
        comm_ = messages_->comm = comm;
        set_up();
    }

    // Nothing of it waits for the others.
    void set_up(shared<mpi_members> members) {
        mpi_leftovers::reap();
        rank_ = members->rank;
        size_ = int(members->ranks.size());
        messages_->set_up_among(members->comm, rank_, members->ranks, members->first_tag());
        members_ = std::move(members);
    }

    void set_up() {
        mpi_leftovers::reap();
        // Failures return as codes on this communicator only, which is hvd's own.
        MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
        check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
        check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
        messages_->set_up(rank_, size_);
    }

    // Ranks of one machine share a node, which is named by its first rank. MPI's own call for that
    // would wait for ranks that have given up.
    [[gnu::cold]] void find_nodes() {
        if (members_) {
            for (std::size_t r = 0; r < nodes_.size(); ++r) nodes_[r] = members_->first_on_host(r);
            return;
        }
        const auto mine = std::int64_t(host_identity());
        const auto hosts = numbers_of_all(*this, making, {&mine, 1}, never);
        for (std::size_t r = 0; r < nodes_.size(); ++r) {
            std::size_t first = 0;
            while (hosts[first] != hosts[r]) ++first;
            nodes_[r] = int(first);
        }
    }

    [[gnu::cold]] table<call_header> headers_by_messages(const call_header& mine) const {
        table<call_header> all(static_cast<std::size_t>(size_));
        copy_header(all[std::size_t(rank_)], mine);
        try {
            for (int p = 0; p < size_; ++p) {
                if (p == rank_) continue;
                messages_->receive(p, reinterpret_cast<std::byte*>(&all[std::size_t(p)]),
                                   sizeof mine);
                messages_->send(p, reinterpret_cast<const std::byte*>(&all[std::size_t(rank_)]),
                                sizeof mine);
            }
            await_messages();
        } catch (...) {
            messages_->cancel();
            throw;
        }
        replace_other_bytes(all);
        return all;
    }
    [[gnu::cold]] void await_messages() const {
        backoff pauses(false);
        while (!messages_->poll()) {
            if (!pauses.pause()) continue;
            if (!steps_.should_give_up() && !members_->detector->has_detected()) continue;
            std::vector<int> late;
            for (int p = 0; p < size_; ++p)
                if (p != rank_ && pending(p)) late.push_back(p);
            throw_peer_error(steps_.is_over(), rank_,
                             text("hvd: ", making, ": other ranks did not come in time"),
                             std::move(late));
        }
    }

    // Ranks that are all alone on their nodes need no memory, unless the library is between them.
    [[gnu::cold]] void make_area() {
        node_memory::position here;
        together([&] { here = node_memory::position(*this); });
        if (here.nodes > 1 && here.nodes == size_ && !by_library_) return;
        memory_.make(*this, here, window_);
        if (region() != nullptr && by_library_ && here.nodes > 1)
            together([&] {
                check(MPI_Comm_split(comm_, here.mine, rank_, &across()), "MPI_Comm_split");
            });
    }

    // The ranks with this local rank, if the library is used.
    MPI_Comm& across() const { return messages_->across; }

    static constexpr const char* making = "making of a communicator";

    owner<mpi_messages> messages_;
    shared<mpi_members> members_;  // null: the ranks are those of MPI's communicator
    MPI_Comm native_ = MPI_COMM_NULL;
    std::vector<int> nodes_;
    std::size_t window_ = 0;
    bool by_library_ = false;
    mutable mpi_steps steps_;          // while the communicator is made
    MPI_Comm parent_ = MPI_COMM_NULL;  // of a subset, as the group and the context are
    MPI_Group group_ = MPI_GROUP_NULL;
    int context_ = 0;
    node_memory memory_;
    void* tells_end_to_ = nullptr;
    pid_t process_ = getpid();  // a forked child does not use MPI
};

}  // namespace detail

/// Ranks are MPI processes. hvd moves the data: through shared memory inside a node, and by its own
/// messages between nodes. Reductions are in rank order, and over several nodes in the order of the
/// nodes. It works at any thread level.
struct mpi {
    using endpoint_type = detail::mpi_endpoint;
};

static_assert(backend<mpi>);

}  // namespace hvd::inline v0
