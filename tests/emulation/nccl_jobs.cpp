// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The jobs of NCCL's thread, and the state of communicators.

#include <chrono>

#include "nccl_comm.hpp"

namespace emulated_nccl {

// Several ranks of a process may see the same one.
void report(std::string difference) {
    if (std::find(differences.begin(), differences.end(), difference) == differences.end())
        differences.push_back(std::move(difference));
}

ncclResult_t state_of(const ncclComm& comm) {
    return comm.result != ncclSuccess ? comm.result : comm.remote;
}

ncclResult_t usable(const ncclComm& comm) {
    const ncclResult_t state = state_of(comm);
    return state == ncclInProgress ? ncclInvalidArgument : state;
}

ncclResult_t keep_error(ncclComm& comm, ncclResult_t code) {
    if (code != ncclSuccess && !comm.blocking()) comm.result = code;
    return code;
}

ncclResult_t in_group(ncclResult_t code) {
    if (group_depth > 0 && code != ncclSuccess && code != ncclInProgress) group_error = code;
    return code;
}

void not_in_a_group(const char* name) {
    if (group_depth > 0) emulation::die(std::string(name) + " in a group");
}

void end_job(ncclComm& comm, ncclResult_t result) {
    const job last = std::move(*comm.pending);
    comm.pending.reset();
    last.finish(result);
    comm.failed_job = result != ncclSuccess;
    if (comm.blocking() ? result == ncclSuccess : comm.result == ncclInProgress)
        comm.result = result;
    changed.notify_all();
}

void progress(ncclComm& comm) {
    const bool peer_died = comm.clique != nullptr && !comm.aborted && comm.clique->has_dead_rank();
    if (peer_died && comm.pending) return end_job(comm, ncclRemoteError);
    if (peer_died) comm.remote = ncclRemoteError;
    if (!comm.pending) return;
    if (comm.polls > 0) --comm.polls;
    else if (comm.pending->refusal != ncclSuccess) end_job(comm, comm.pending->refusal);
    else if (comm.pending->ready()) end_job(comm, ncclSuccess);
}

ncclResult_t start(std::unique_lock<std::mutex>& lock, ncclComm& comm, job work) {
    comm.pending = std::move(work);
    changed.notify_all();
    if (!comm.blocking()) {
        comm.result = ncclInProgress;
        comm.polls = int(emulation::random_number() % 4);
        if (emulation::random_number() % 4 == 0) progress(comm);
        return state_of(comm);
    }
    const job& waiting = *comm.pending;
    ncclResult_t result = waiting.refusal;
    const auto died = [&] { return comm.clique != nullptr && comm.clique->has_dead_rank(); };
    if (result == ncclSuccess) {
        const bool revoked = comm.aborted;
        while (!(comm.aborted && !revoked) && !died() && !waiting.ready()) rest(lock, comm);
        if (!waiting.ready()) result = ncclRemoteError;
    }
    end_job(comm, result);
    return result;
}

void withdraw(ncclComm& comm) {
    comm.aborted = true;
    if (comm.clique != nullptr) comm.clique->leave();
    changed.notify_all();
}

void rest(std::unique_lock<std::mutex>& lock, const ncclComm& comm) {
    // The end of a kernel wakes nobody.
    const bool is_woken = comm.clique == nullptr || comm.clique->is_within_this_process();
    if (is_woken && !emulation::launches_block()) changed.wait(lock);
    else changed.wait_for(lock, std::chrono::microseconds(200));
}

bool on_device(const void* address) { return emulation::seen_by_device(address, 1) != address; }

}  // namespace emulated_nccl

using namespace emulated_nccl;

namespace emulation {

void forget_disagreements() {
    const std::lock_guard lock(mutex);
    differences.clear();
    calls_between_windows = 0;
    if (live.empty()) shared_file::forget_all();
}

}  // namespace emulation

std::vector<std::string> emulation::disagreements() {
    const std::lock_guard lock(mutex);
    return differences;
}

void emulation::kill(ncclComm_t comm) {
    const std::lock_guard lock(mutex);
    comm->clique->own().is_dead = true;
    changed.notify_all();
}

int emulation::symmetric_calls() {
    const std::lock_guard lock(mutex);
    return calls_between_windows;
}

int emulation::communicators_of(int most_blocks) {
    const std::lock_guard lock(mutex);
    return int(std::count_if(live.begin(), live.end(), [=](const auto& comm) {
        return comm->config.maxCTAs == most_blocks;
    }));
}

std::size_t emulation::windows_of(ncclComm_t comm) {
    const std::lock_guard lock(mutex);
    return comm->windows.size();
}

ncclConfig_t emulation::config_of(ncclComm_t comm) {
    const std::lock_guard lock(mutex);
    return comm->config;
}
