// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// NCCL's communicators are made, asked and ended.

#include <tuple>

#include "nccl_comm.hpp"
#include "newer_nccl.hpp"

using namespace emulated_nccl;

namespace {

shared_comm make_comm(int device, const ncclConfig_t& config) {
    auto comm = std::make_shared<ncclComm>();
    comm->device = device;
    comm->config = config;
    live.insert(comm);
    emulation::count_object(1);
    return comm;
}

void join(ncclComm& comm, std::shared_ptr<shared_file> file, std::uint64_t area, int size,
          int rank) {
    comm.clique = std::make_shared<clique>(std::move(file), area, size, rank);
    comm.rank = rank;
    changed.notify_all();
}

// The job of a rank that has joined the ranks of an id.
job await_all(const ncclComm& comm, std::function<void(ncclResult_t)> finish) {
    return {[all = comm.clique] { return all->is_complete(); },
            [all = comm.clique, finish](ncclResult_t ended) {
                if (all->is_complete()) all->file->is_known_to_all();
                else if (ended != ncclSuccess) all->own().process = 0;
                finish(ended);
            }};
}

// Makes the communicator of the ranks of one color.
void join_color(ncclComm& comm, const clique& parent, std::vector<clique::came> all, int color) {
    std::erase_if(all, [color](const auto& a) { return a.color != color; });
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
        return std::tie(a.key, a.rank) < std::tie(b.key, b.rank);
    });
    const auto own =
        std::find_if(all.begin(), all.end(), [&](const auto& a) { return a.rank == parent.rank; });
    join(comm, parent.file, all[0].area, int(all.size()), int(own - all.begin()));
}

}  // namespace

job emulated_nccl::meet(
    ncclComm& comm, flavour how, int expected, int color, int key,
    std::function<void(ncclResult_t, const std::vector<clique::came>&)> finish) {
    const auto all = comm.clique;
    const std::uint64_t number = comm.next_meeting++;
    const bool makes_one = how != window_flavour && color != NCCL_SPLIT_NOCOLOR;
    all->arrive(number, how, color, key, makes_one ? all->file->new_area() : 0);
    changed.notify_all();
    const auto ranks = std::make_shared<std::vector<clique::came>>();
    const auto ready = [=] {
        *ranks = all->arrivals(number, how);
        return int(ranks->size()) == expected;
    };
    return {ready, [=](ncclResult_t result) {
                if (result != ncclSuccess && !ready()) all->leave_meeting(number);
                finish(result, *ranks);
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
                    const ncclConfig_t* config, flavour how, int expected, int color, int key) {
    const auto parsed_config = parsed(config, parent.config);
    if (!parsed_config) return ncclInvalidArgument;
    *result = nullptr;
    const auto child =
        color == NCCL_SPLIT_NOCOLOR ? nullptr : make_comm(parent.device, *parsed_config);
    const auto finish = [child, result, color, all = parent.clique](ncclResult_t ended,
                                                                    const auto& ranks) {
        if (child && ended == ncclSuccess) join_color(*child, *all, ranks, color);
        else if (child) child->result = ended;
        write_result(result, child.get());
    };
    const ncclResult_t state = start(lock, parent, meet(parent, how, expected, color, key, finish));
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
    *id = shared_file::make()->id();
    return ncclSuccess;
}

// An id is for one growth, after which another one may be made.
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (comm == nullptr || id == nullptr) return ncclInvalidArgument;
    const std::lock_guard lock(mutex);
    if (const ncclResult_t no = usable(*comm); no != ncclSuccess) return no;
    if (!comm->clique->last_growth_is_complete())
        emulation::die("ncclCommGetUniqueId before the last growth is complete");
    *id = shared_file::make()->id();
    comm->clique->make_growth(*id);
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
        id = parent->clique->next_growth();
        if (id == nullptr) emulation::die("ncclCommGrow waits for an id inside the call");
        ++parent->clique->own().growths_taken;
        device = parent->device;
        rank = parent->rank;
    }
    const auto comm = make_comm(device, *parsed_config);
    join(*comm, shared_file::named(*id), 0, size, rank);
    *result = comm.get();
    const ncclResult_t state =
        start(lock, *comm, await_all(*comm, [result, made = comm.get()](ncclResult_t) {
                  write_result(result, made);
              }));
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
    const auto comm = make_comm(device, *parsed_config);
    join(*comm, shared_file::named(id), 0, size, rank);
    *result = comm.get();
    // NCCL's thread may fail in a function of its own, which all ranks notice.
    const auto failure = ncclResult_t(emulation::faulted("ncclCommInitRankFunc"));
    job work = await_all(*comm, [all = comm->clique, failure](ncclResult_t) {
        if (failure != ncclSuccess) all->own().is_dead = true;
    });
    work.refusal = failure;
    return start(lock, *comm, std::move(work));
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
    return derive(lock, *parent, result, config, split_flavour, parent->clique->size, color, key);
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
    return derive(lock, *parent, result, config, shrink_flavour, parent->clique->size - n, 0,
                  parent->rank);
}

}  // extern "C"
