// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// NCCL's communicators are made, asked and ended.

#include "nccl_comm.hpp"
#include "newer_nccl.hpp"

using namespace emulated_nccl;

namespace {

// cliques that ranks have yet to join, by id
std::map<std::string, std::shared_ptr<clique>> cliques;
std::uint64_t ids = 0;

ncclUniqueId new_id() {
    ncclUniqueId id{};
    ++ids;
    std::memcpy(id.internal, &ids, sizeof ids);
    return id;
}

std::string text_of(const ncclUniqueId& id) { return std::string(id.internal, sizeof id.internal); }

shared_comm make_comm(int device, const ncclConfig_t& config) {
    auto comm = std::make_shared<ncclComm>();
    comm->device = device;
    comm->config = config;
    live.insert(comm);
    emulation::count_object(1);
    return comm;
}

void join(ncclComm& comm, std::shared_ptr<clique> all, int rank) {
    comm.clique = std::move(all);
    comm.rank = rank;
    if (++comm.clique->joined == comm.clique->size) comm.clique->complete = true;
}

// Makes the communicators of all ranks, one for each colour.
void make_cliques(meeting& m) {
    auto& all = m.arrivals;
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
        return std::tie(a.color, a.key, a.rank) < std::tie(b.color, b.key, b.rank);
    });
    for (auto first = all.begin(); first != all.end();) {
        const auto last =
            std::find_if(first, all.end(), [&](const auto& a) { return a.color != first->color; });
        const auto part = std::make_shared<clique>(int(last - first));
        int rank = 0;
        for (auto a = first; a != last; ++a)
            if (a->comm) join(*a->comm, part, rank++);
        first = last;
    }
}

// Multicast needs a window at one place on all ranks, and nothing in NCCL looks.
void compare_places(const meeting& m) {
    for (const arrival& a : m.arrivals)
        if (a.key != m.arrivals[0].key)
            report("a window is at place " + std::to_string(m.arrivals[0].key) + " on rank " +
                   std::to_string(m.arrivals[0].rank) + " and at " + std::to_string(a.key) +
                   " on rank " + std::to_string(a.rank));
}

}  // namespace

job emulated_nccl::meet(ncclComm& comm, int flavour, int expected, arrival mine,
                        std::function<void(ncclResult_t)> finish) {
    meeting& m = comm.clique->meetings[{comm.next_meeting++, flavour}];
    m.arrivals.push_back(mine);
    if (int(m.arrivals.size()) == expected) {
        m.complete = true;
        if (flavour == window_flavour) compare_places(m);
        else make_cliques(m);
    }
    changed.notify_all();
    return {[&m] { return m.complete; },
            [&m, rank = mine.rank, finish, all = comm.clique](ncclResult_t result) {
                if (result != ncclSuccess && !m.complete)
                    std::erase_if(m.arrivals, [&](const auto& a) { return a.rank == rank; });
                finish(result);
            }};
}

namespace {

std::optional<ncclConfig_t> parsed(const ncclConfig_t* given, const ncclConfig_t& otherwise) {
    if (given == nullptr) return otherwise;
    ncclConfig_t config = *given;
    if (config.magic != 0xcafebeef) return {};
    if (config.blocking == NCCL_CONFIG_UNDEF_INT) config.blocking = 1;
    if (config.blocking != 0 && config.blocking != 1) return {};
    return config;
}

ncclResult_t forget(ncclComm_t comm) {
    const shared_comm last = comm->shared_from_this();
    if (last->askers > 0) emulation::die("a communicator ends while a thread asks for its state");
    withdraw(*last);
    emulation::count_object(-int(last->windows.size() + last->registrations.size()));
    if (live.erase(last) > 0) emulation::count_object(-1);
    changed.notify_all();
    return ncclSuccess;
}

// A child is written to `result` when the job ends, even if it failed.
ncclResult_t derive(std::unique_lock<std::mutex>& lock, ncclComm& parent, ncclComm_t* result,
                    const ncclConfig_t* config, int flavour, int expected, int color, int key) {
    const auto parsed_config = parsed(config, parent.config);
    if (!parsed_config) return ncclInvalidArgument;
    *result = nullptr;
    const auto child =
        color == NCCL_SPLIT_NOCOLOR ? nullptr : make_comm(parent.device, *parsed_config);
    const auto finish = [child, result](ncclResult_t ended) {
        if (child && ended != ncclSuccess) child->result = ended;
        write_result(result, child.get());
    };
    const ncclResult_t state = start(
        lock, parent, meet(parent, flavour, expected, {color, key, parent.rank, child}, finish));
    return parent.blocking() ? state : ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (version == nullptr) return ncclInvalidArgument;
    *version = emulation::nccl_version();
    return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t code) {
    switch (code) {
        case ncclSuccess: return "no error";
        case ncclRemoteError: return "remote process exited or there was a network error";
        case ncclInvalidArgument: return "invalid argument";
        case ncclInvalidUsage: return "invalid usage";
        case ncclSystemError: return "unhandled system error";
        default: return "an error of the emulation";
    }
}

const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (id == nullptr) return ncclInvalidArgument;
    const std::lock_guard lock(mutex);
    *id = new_id();
    return ncclSuccess;
}

// An id is for one growth, after which another one may be made.
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (comm == nullptr || id == nullptr) return ncclInvalidArgument;
    const std::lock_guard lock(mutex);
    if (const ncclResult_t no = usable(*comm); no != ncclSuccess) return no;
    if (!comm->clique->growing.empty())
        emulation::die("ncclCommGetUniqueId before the last growth is complete");
    *id = new_id();
    comm->clique->growing = text_of(*id);
    comm->clique->grown = 0;
    return ncclSuccess;
}

// The handle is there at once, to be polled, though the call returns ncclSuccess. A rank that has
// the parent waits inside the call until one of them has made the id. The parent stays as it is.
ncclResult_t ncclCommGrow(ncclComm_t parent, int size, const ncclUniqueId* id, int rank,
                          ncclComm_t* result, ncclConfig_t* config) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    not_in_a_group(__func__);
    if (result == nullptr) return ncclInvalidArgument;
    *result = nullptr;
    ncclConfig_t plain = NCCL_CONFIG_INITIALIZER;
    plain.blocking = 1;
    const auto parsed_config = parsed(config, parent != nullptr ? parent->config : plain);
    if (!parsed_config || size <= 0) return ncclInvalidArgument;
    if (parent == nullptr && (id == nullptr || rank < 0 || rank >= size))
        return ncclInvalidArgument;
    int device = 0;
    cudaGetDevice(&device);
    std::unique_lock lock(mutex);
    if (parent != nullptr) {
        if (const ncclResult_t no = usable(*parent); no != ncclSuccess) return no;
        if (parent->revoked) return ncclInvalidUsage;
        if (size <= parent->clique->size || rank != -1) return ncclInvalidArgument;
        if (parent->clique->growing.empty())
            emulation::die("ncclCommGrow waits for an id inside the call");
        device = parent->device;
        rank = parent->rank;
    }
    const std::string key = parent != nullptr ? parent->clique->growing : text_of(*id);
    if (parent != nullptr && ++parent->clique->grown == parent->clique->size)
        parent->clique->growing.clear();
    auto& all = cliques[key];
    if (!all) all = std::make_shared<clique>(size);
    const auto comm = make_comm(device, *parsed_config);
    join(*comm, all, rank);
    *result = comm.get();
    const ncclResult_t state =
        start(lock, *comm,
              {[c = comm->clique] { return c->complete; },
               [c = comm->clique, result, made = comm.get()](ncclResult_t ended) {
                   if (ended != ncclSuccess && !c->complete) --c->joined;
                   write_result(result, made);
               }});
    return comm->blocking() ? state : ncclSuccess;
}

// The handle is there at once, to be polled.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* result, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    not_in_a_group(__func__);
    ncclConfig_t plain = NCCL_CONFIG_INITIALIZER;
    plain.blocking = 1;
    const auto parsed_config = parsed(config, plain);
    if (result == nullptr) return ncclInvalidArgument;
    *result = nullptr;
    if (rank < 0 || rank >= size || !parsed_config) return ncclInvalidArgument;
    int device = 0;
    cudaGetDevice(&device);
    std::unique_lock lock(mutex);
    auto& all = cliques[text_of(id)];
    if (!all) all = std::make_shared<clique>(size);
    const auto comm = make_comm(device, *parsed_config);
    join(*comm, all, rank);
    *result = comm.get();
    // NCCL's thread may fail in a function of its own, which all ranks notice.
    const auto failure = ncclResult_t(emulation::faulted("ncclCommInitRankFunc"));
    return start(lock, *comm,
                 {[c = comm->clique] { return c->complete; },
                  [c = comm->clique, rank, failure](ncclResult_t ended) {
                      if (ended != ncclSuccess && !c->complete) --c->joined;
                      if (failure != ncclSuccess) c->dead[std::size_t(rank)] = true;
                  },
                  failure});
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (comm == nullptr || state == nullptr) return ncclInvalidArgument;
    std::unique_lock lock(mutex);
    ++comm->askers;
    lock.unlock();
    emulation::wait_as_slow_states_do();
    lock.lock();
    --comm->askers;
    progress(*comm);
    *state = state_of(*comm);
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (comm == nullptr || count == nullptr) return ncclInvalidArgument;
    const std::lock_guard lock(mutex);
    if (const ncclResult_t no = usable(*comm); no != ncclSuccess) return no;
    *count = comm->clique->size;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (comm == nullptr || rank == nullptr) return ncclInvalidArgument;
    const std::lock_guard lock(mutex);
    if (const ncclResult_t no = usable(*comm); no != ncclSuccess) return no;
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (comm == nullptr || device == nullptr) return ncclInvalidArgument;
    const std::lock_guard lock(mutex);
    if (const ncclResult_t no = usable(*comm); no != ncclSuccess) return no;
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (comm == nullptr) return ncclSuccess;
    std::unique_lock lock(mutex);
    if (const ncclResult_t no = usable(*comm); no != ncclSuccess) return keep_error(*comm, no);
    if (comm->finalized) return keep_error(*comm, ncclInvalidArgument);
    comm->finalized = true;
    return start(lock, *comm, {[] { return true; }, [](ncclResult_t) {}});
}

// A communicator with an error can only be aborted.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (comm == nullptr) return ncclSuccess;
    const std::lock_guard lock(mutex);
    if (const ncclResult_t no = usable(*comm); no != ncclSuccess) return no;
    return forget(comm);
}

// It waits for NCCL's thread, which writes its results before it ends.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (comm == nullptr) return ncclSuccess;
    const std::lock_guard lock(mutex);
    if (comm->pending) end_job(*comm, ncclInternalError);
    return forget(comm);
}

// Ends calls under way, after the function has returned. The communicator can only be split, shrunk
// or ended afterwards. NCCL 2.28.9 uses the job of a call that is pending, or that failed, after it
// has freed it.
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (comm == nullptr) return ncclSuccess;
    std::unique_lock lock(mutex);
    if (flags != NCCL_REVOKE_DEFAULT || comm->finalized || comm->revoked)
        return ncclInvalidArgument;
    if (!comm->blocking() && (comm->pending || comm->failed_job))
        emulation::die("ncclCommRevoke with a call that is in progress, or that failed there");
    withdraw(*comm);
    comm->revoked = comm->finalized = true;
    return start(lock, *comm, {[] { return true; }, [](ncclResult_t) {}});
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* result,
                           ncclConfig_t* config) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    not_in_a_group(__func__);
    if (parent == nullptr || result == nullptr) return ncclInvalidArgument;
    std::unique_lock lock(mutex);
    if (const ncclResult_t no = usable(*parent); no != ncclSuccess) return no;
    return derive(lock, *parent, result, config, 0, parent->clique->size, color, key);
}

ncclResult_t ncclCommShrink(ncclComm_t parent, int* excluded, int n, ncclComm_t* result,
                            ncclConfig_t* config, int flags) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    not_in_a_group(__func__);
    if (parent == nullptr || result == nullptr || excluded == nullptr || n <= 0)
        return ncclInvalidArgument;
    std::unique_lock lock(mutex);
    if (std::find(excluded, excluded + n, parent->rank) != excluded + n) return ncclInvalidArgument;
    if (flags == NCCL_SHRINK_ABORT) withdraw(*parent);
    if (const ncclResult_t no = usable(*parent); no != ncclSuccess) return no;
    return derive(lock, *parent, result, config, 1, parent->clique->size - n, 0, parent->rank);
}

}  // extern "C"
