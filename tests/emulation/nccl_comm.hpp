// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "nccl_clique.hpp"

// The communicators of NCCL, as strict as the source of NCCL 2.28.9 (README.md says where not). A
// thread of NCCL ends a call on a nonblocking communicator. Here a poll does, some polls later.
namespace emulated_nccl {

// The part of a call that NCCL does after the call has returned.
struct job {
    std::function<bool()> ready;               // the other ranks have done their parts
    std::function<void(ncclResult_t)> finish;  // writes the results
    ncclResult_t refusal = ncclSuccess;        // the job fails at once, on this rank alone
};

// The calls in which ranks meet.
enum flavour { split_flavour, shrink_flavour, window_flavour };

// NCCL gives the memory of a window the first place that is free in a space of the communicator.
struct window_place {
    std::size_t bytes;
    int place, end;  // in granules
};

}  // namespace emulated_nccl

struct ncclComm : std::enable_shared_from_this<ncclComm> {
    std::shared_ptr<emulated_nccl::clique> clique;
    int rank = -1;
    int device = 0;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    bool aborted = false, revoked = false, finalized = false;
    ncclResult_t result = ncclSuccess;  // an error stays
    ncclResult_t remote = ncclSuccess;  // the error of the network's thread, which stays as well
    std::optional<emulated_nccl::job> pending;
    bool failed_job = false;
    int askers = 0;  // threads in ncclCommGetAsyncError
    int polls = 0;   // polls before the pending job is looked at
    std::uint64_t next_meeting = 0;
    std::atomic<std::uint64_t> next_round = 0;
    struct scaled_sum {
        double scalar;
        ncclDataType_t type;
    };
    std::map<int, scaled_sum> scaled_sums;  // of ncclRedOpCreatePreMulSum
    std::map<const void*, emulated_nccl::window_place> windows;
    std::set<const void*> registrations;

    bool blocking() const { return config.blocking != 0; }
};

namespace emulated_nccl {

using shared_comm = std::shared_ptr<ncclComm>;

// Guards all data below. One mutex is enough, since ranks are few.
inline std::mutex mutex;
inline std::condition_variable changed;
inline std::set<shared_comm> live;
inline std::vector<std::string> differences;
inline int calls_between_windows = 0;

inline thread_local int group_depth = 0;
inline thread_local ncclResult_t group_error = ncclSuccess;

// Notes a difference between the ranks.
void report(std::string difference);

ncclResult_t state_of(const ncclComm& comm);
// Every function that needs a communicator in order asks this first.
ncclResult_t usable(const ncclComm& comm);
// Errors stay with a nonblocking communicator, whoever made them.
ncclResult_t keep_error(ncclComm& comm, ncclResult_t code);
// A group fails at its end if one of its calls failed.
ncclResult_t in_group(ncclResult_t code);
// The calls that make communicators and windows stand outside of groups in the emulation.
void not_in_a_group(const char* name);

// Begins what NCCL does after the call, or does it if the communicator blocks. Returns the state.
ncclResult_t start(std::unique_lock<std::mutex>& lock, ncclComm& comm, job work);
void end_job(ncclComm& comm, ncclResult_t result);
// Notices ranks that died, and ends the pending job if nothing is missing.
void progress(ncclComm& comm);
// The memory of an aborted rank may be freed from now on. Its peers in a call get
// garbage, and don't notice.
void withdraw(ncclComm& comm);

// The job of a call in which `expected` ranks meet. A rank whose job fails has not come. `finish`
// gets those that have.
job meet(ncclComm& comm, flavour how, int expected, int color, int key,
         std::function<void(ncclResult_t, const std::vector<clique::came>&)> finish);

// Waits until something may have changed. Other processes can't wake this one.
void rest(std::unique_lock<std::mutex>& lock, const ncclComm& comm);

// Waits until `there()`, or until the communicator is aborted. Returns `there()`. A kernel that
// waits for a dead peer goes on waiting.
template <class F>
bool await(std::unique_lock<std::mutex>& lock, const ncclComm& comm, F there) {
    while (!there() && !comm.aborted) rest(lock, comm);
    return there();
}

// True if the device has memory at this address.
bool on_device(const void* address);

// NCCL writes a result when its thread ends. The frame of the call may be gone by then.
template <class T>
void write_result(T* where, T value) {
    pthread_attr_t attributes;
    void* stack = nullptr;
    std::size_t bytes = 0;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &stack, &bytes);
    pthread_attr_destroy(&attributes);
    const auto address = reinterpret_cast<std::uintptr_t>(where);
    if (address >= reinterpret_cast<std::uintptr_t>(stack) &&
        address < reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)))
        emulation::die("NCCL writes a result into a stack frame that is gone");
    *where = value;
}

}  // namespace emulated_nccl
