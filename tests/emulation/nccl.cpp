// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The communicators of NCCL, as strict as the source of NCCL 2.28.9 (README.md says where not). A
// thread of NCCL ends a call on a nonblocking communicator. Here a poll does, some polls later.

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>

#include "nccl_calls.hpp"

namespace {

using emulation::call;
using emulation::kind;
using emulation::round;

// A rank that makes a communicator from another, or a window.
struct arrival {
    int color, key, rank;
    std::shared_ptr<ncclComm> comm;
};

// The ranks that came to one call that all ranks make.
struct meeting {
    std::vector<arrival> arrivals;
    bool complete = false;
};

// The data that the ranks of one communicator share.
struct clique {
    int size;
    int joined = 0;
    bool complete = false;
    std::vector<bool> dead = std::vector<bool>(std::size_t(size));
    std::map<std::uint64_t, round> rounds;
    std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> mail;
    std::map<std::pair<std::uint64_t, int>, meeting> meetings;
    // The ranks that connect for collectives, and the messages for which ranks connect: sender,
    // receiver, and which of them came.
    std::set<int> connecting;
    std::set<std::tuple<int, int, kind>> connections;

    explicit clique(int n) : size(n) {}
};

// The part of a call that NCCL does after the call has returned.
struct job {
    std::function<bool()> ready;               // the other ranks have done their parts
    std::function<void(ncclResult_t)> finish;  // writes the results
    ncclResult_t refusal = ncclSuccess;        // the job fails at once, on this rank alone
};

// NCCL has room for so many operations between ncclGroupStart and ncclGroupEnd (NCCL_MAX_OPS).
constexpr std::size_t most_operations = 2048;
constexpr std::uintptr_t window_alignment = 4096;
constexpr std::size_t window_granule = std::size_t(2) << 20;
constexpr int window_flavour = 2;  // of a meeting

// Guards all data below. One mutex is enough, since ranks are few.
std::mutex mutex;
std::condition_variable changed;
std::set<std::shared_ptr<ncclComm>> live;
// cliques that ranks have yet to join, by id
std::map<std::string, std::shared_ptr<clique>> cliques;
std::vector<std::string> differences;
int calls_between_windows = 0;
std::uint64_t ids = 0;
int operations = int(ncclNumOps);  // numbers of destroyed operations are not used again
std::map<const std::byte*, std::size_t> window_memory;  // of ncclMemAlloc

struct grouped {
    ncclComm_t comm;
    cudaStream_t stream;
    call what;
};
thread_local int group_depth = 0;
thread_local std::vector<grouped> group;
thread_local ncclResult_t group_error = ncclSuccess;

}  // namespace

namespace {

// NCCL gives the memory of a window the first place that is free in a space of the communicator.
struct window_place {
    std::size_t bytes;
    int place, end;  // in granules
};

}  // namespace

struct ncclComm : std::enable_shared_from_this<ncclComm> {
    std::shared_ptr<::clique> clique;
    int rank = -1;
    int device = 0;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    bool aborted = false, revoked = false, finalized = false;
    ncclResult_t result = ncclSuccess;  // an error stays
    ncclResult_t remote = ncclSuccess;  // the error of the network's thread, which stays as well
    std::optional<job> pending;
    bool failed_job = false;
    int polls = 0;  // polls before the pending job is looked at
    std::uint64_t next_round = 0, next_meeting = 0;
    struct scaled_sum {
        double scalar;
        ncclDataType_t type;
    };
    std::map<int, scaled_sum> scaled_sums;  // of ncclRedOpCreatePreMulSum
    std::map<const void*, window_place> windows;
    std::set<const void*> registrations;

    bool blocking() const { return config.blocking != 0; }
};

namespace {

using shared_comm = std::shared_ptr<ncclComm>;

void report(std::string difference) { differences.push_back(std::move(difference)); }

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

ncclResult_t state_of(const ncclComm& comm) {
    return comm.result != ncclSuccess ? comm.result : comm.remote;
}

// Every function that needs a communicator in order asks this first.
ncclResult_t usable(const ncclComm& comm) {
    const ncclResult_t state = state_of(comm);
    return state == ncclInProgress ? ncclInvalidArgument : state;
}

// Errors stay with a nonblocking communicator, whoever made them.
ncclResult_t keep_error(ncclComm& comm, ncclResult_t code) {
    if (code != ncclSuccess && !comm.blocking()) comm.result = code;
    return code;
}

// A group fails at its end if one of its calls failed.
ncclResult_t in_group(ncclResult_t code) {
    if (group_depth > 0 && code != ncclSuccess && code != ncclInProgress) group_error = code;
    return code;
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

// Notices ranks that died, and ends the pending job if nothing is missing.
void progress(ncclComm& comm) {
    const bool peer_died = comm.clique != nullptr && !comm.aborted &&
                           std::find(comm.clique->dead.begin(), comm.clique->dead.end(), true) !=
                               comm.clique->dead.end();
    if (peer_died && comm.pending) return end_job(comm, ncclRemoteError);
    if (peer_died) comm.remote = ncclRemoteError;
    if (!comm.pending) return;
    if (comm.polls > 0) --comm.polls;
    else if (comm.pending->refusal != ncclSuccess) end_job(comm, comm.pending->refusal);
    else if (comm.pending->ready()) end_job(comm, ncclSuccess);
}

// Begins what NCCL does after the call, or does it if the communicator blocks. Returns the state.
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
    const auto died = [&] {
        return comm.clique != nullptr &&
               std::find(comm.clique->dead.begin(), comm.clique->dead.end(), true) !=
                   comm.clique->dead.end();
    };
    if (result == ncclSuccess) {
        const bool revoked = comm.aborted;
        changed.wait(lock, [&] { return (comm.aborted && !revoked) || died() || waiting.ready(); });
        if (!waiting.ready()) result = ncclRemoteError;
    }
    end_job(comm, result);
    return result;
}

// Waits until `arrived`. It returns false if the communicator is aborted first. A kernel that waits
// for a dead peer goes on waiting.
template <class F>
bool wait_for(std::unique_lock<std::mutex>& lock, ncclComm& comm, F arrived) {
    changed.wait(lock, [&] { return arrived() || comm.aborted; });
    return !comm.aborted;
}

// The memory of an aborted rank may be freed from now on.
void withdraw(ncclComm& comm) {
    comm.aborted = true;
    if (comm.clique != nullptr)
        for (auto& [number, r] : comm.clique->rounds)
            if (!r.done) r.arrived[std::size_t(comm.rank)] = false;
    changed.notify_all();
}

std::uint64_t next_round_of(ncclComm& comm) {
    const std::lock_guard lock(mutex);
    return comm.next_round++;
}

// The kernel of a collective, on the stream of one rank.
void take_part(const shared_comm& comm, std::uint64_t number, const call& c) {
    std::unique_lock lock(mutex);
    if (comm->aborted) return;
    clique& all = *comm->clique;
    round& r = all.rounds.try_emplace(number, all.size).first->second;
    r.calls[std::size_t(comm->rank)] = c;
    r.arrived[std::size_t(comm->rank)] = true;
    if (std::find(r.arrived.begin(), r.arrived.end(), false) != r.arrived.end()) {
        wait_for(lock, *comm, [&r] { return r.done; });
        return;
    }
    const auto other = std::find_if(r.calls.begin(), r.calls.end(),
                                    [&](const call& x) { return !same_call(x, r.calls[0]); });
    if (other == r.calls.end()) emulation::perform(r);
    else
        report("call " + std::to_string(number) + ": rank 0 has " + r.calls[0].text() + ", rank " +
               std::to_string(other - r.calls.begin()) + " has " + other->text());
    r.done = true;
    changed.notify_all();
}

// The messages of one group. All are sent before one is waited for.
void exchange(const shared_comm& comm, const std::vector<call>& messages) {
    std::unique_lock lock(mutex);
    if (comm->aborted) return;
    auto& mail = comm->clique->mail;
    for (const call& c : messages) {
        if (c.what != kind::send) continue;
        const std::size_t bytes = c.count * emulation::size_of(c.type);
        const std::byte* const data = bytes > 0 ? emulation::seen_by_device(c.in, bytes) : nullptr;
        mail[{comm->rank, c.root}].emplace_back(data, data + bytes);
    }
    changed.notify_all();
    for (const call& c : messages) {
        if (c.what != kind::receive) continue;
        auto& box = mail[{c.root, comm->rank}];
        if (!wait_for(lock, *comm, [&] { return !box.empty(); })) return;
        const std::size_t bytes = c.count * emulation::size_of(c.type);
        if (box.front().size() != bytes)
            report("rank " + std::to_string(c.root) + " sent " +
                   std::to_string(box.front().size()) + " bytes to rank " +
                   std::to_string(comm->rank) + ", which expects " + std::to_string(bytes));
        else if (bytes > 0)
            emulation::move_bytes(emulation::seen_by_device(c.out, bytes), box.front().data(),
                                  bytes);
        box.pop_front();
    }
}

// True if the device has memory at this address.
bool on_device(const void* address) { return emulation::seen_by_device(address, 1) != address; }

ncclResult_t check(const ncclComm& comm, const call& c) {
    if (c.root < 0 || c.root >= comm.clique->size) return ncclInvalidArgument;
    if (int(c.type) < 0 || c.type >= ncclNumTypes) return ncclInvalidArgument;
    if (int(c.op) < 0 || c.op > ncclMaxRedOp) return ncclInvalidArgument;
    if (c.op >= ncclNumOps) {
        const auto sum = comm.scaled_sums.find(int(c.op));
        if (sum == comm.scaled_sums.end() || sum->second.type != c.type) return ncclInvalidArgument;
    }
    if (c.count == 0) return ncclSuccess;
    const bool is_root = comm.rank == c.root;
    const bool reads = c.what != kind::receive &&
                       ((c.what != kind::broadcast && c.what != kind::scatter) || is_root);
    const bool writes =
        c.what != kind::send && ((c.what != kind::reduce && c.what != kind::gather) || is_root);
    const bool valid = (!reads || on_device(c.in)) && (!writes || on_device(c.out));
    return valid ? ncclSuccess : ncclInvalidArgument;
}

bool in_window(const ncclComm& comm, const void* address) {
    const auto* const byte = static_cast<const std::byte*>(address);
    return std::any_of(comm.windows.begin(), comm.windows.end(), [byte](const auto& w) {
        const auto* const first = static_cast<const std::byte*>(w.first);
        return byte >= first && byte < first + w.second.bytes;
    });
}

bool is_message(const call& c) { return c.what == kind::send || c.what == kind::receive; }

// Some collectives are messages to and from all ranks.
std::size_t operations_of(const ncclComm& comm, const call& c) {
    const auto size = std::size_t(comm.clique->size);
    const bool is_root = comm.rank == c.root;
    switch (c.what) {
        case kind::alltoall: return 2 * size;
        case kind::gather:
        case kind::scatter: return is_root ? size + 1 : 1;
        default: return 1;
    }
}

// The kernel of a call. In a graph it takes its place in the order whenever the graph runs.
std::function<void()> kernel_of(const grouped& g) {
    const auto comm = g.comm->shared_from_this();
    if (emulation::is_capturing(g.stream))
        return [=, what = g.what] { take_part(comm, next_round_of(*comm), what); };
    return [=, what = g.what, number = comm->next_round++] { take_part(comm, number, what); };
}

// Ranks connect at the first collective, and at the first message between two of them.
std::function<bool()> connection_of(const shared_comm& comm, const std::vector<grouped>& calls) {
    clique& all = *comm->clique;
    std::vector<std::tuple<int, int, kind>> awaited;
    bool collective = false;
    for (const grouped& g : calls) {
        if (!is_message(g.what)) {
            collective = true;
            all.connecting.insert(comm->rank);
        } else if (g.what.root != comm->rank) {
            const bool sends = g.what.what == kind::send;
            const int from = sends ? comm->rank : g.what.root,
                      to = sends ? g.what.root : comm->rank;
            all.connections.insert({from, to, g.what.what});
            awaited.push_back({from, to, sends ? kind::receive : kind::send});
        }
    }
    changed.notify_all();
    return [comm, collective, awaited] {
        const clique& others = *comm->clique;
        if (collective && int(others.connecting.size()) < others.size) return false;
        return std::all_of(awaited.begin(), awaited.end(),
                           [&](const auto& c) { return others.connections.contains(c); });
    };
}

// The calls of a group on one communicator. Messages on one stream are one kernel.
job launch_of(const shared_comm& comm, const std::vector<grouped>& calls) {
    std::vector<std::pair<cudaStream_t, std::function<void()>>> kernels;
    std::vector<std::pair<cudaStream_t, std::vector<call>>> messages;
    for (const grouped& g : calls) {
        if (!is_message(g.what)) {
            kernels.emplace_back(g.stream, kernel_of(g));
            continue;
        }
        if (messages.empty() || messages.back().first != g.stream)
            messages.emplace_back(g.stream, std::vector<call>());
        messages.back().second.push_back(g.what);
    }
    for (auto& [stream, several] : messages)
        kernels.emplace_back(stream, [=, m = std::move(several)] { exchange(comm, m); });
    return {connection_of(comm, calls), [kernels](ncclResult_t result) {
                if (result != ncclSuccess) return;
                for (const auto& [stream, kernel] : kernels) emulation::enqueue(stream, kernel);
            }};
}

ncclResult_t launch_group(std::unique_lock<std::mutex>& lock) {
    const std::vector<grouped> calls = std::exchange(group, {});
    ncclResult_t result = std::exchange(group_error, ncclSuccess);
    if (calls.empty()) return result;
    std::vector<shared_comm> comms;
    std::size_t total = 0;
    for (const grouped& g : calls) {
        if (std::none_of(comms.begin(), comms.end(), [&](auto& c) { return c.get() == g.comm; }))
            comms.push_back(g.comm->shared_from_this());
        total += operations_of(*g.comm, g.what);
    }
    if (result == ncclSuccess && total > most_operations) result = ncclInvalidUsage;
    for (const shared_comm& comm : comms)
        if (comm->blocking() != comms[0]->blocking()) result = ncclInvalidArgument;
    if (result != ncclSuccess) {
        for (const shared_comm& comm : comms) keep_error(*comm, result);
        return result;
    }
    std::vector<job> jobs;
    for (const shared_comm& comm : comms) {
        std::vector<grouped> own;
        std::copy_if(calls.begin(), calls.end(), std::back_inserter(own),
                     [&](const grouped& g) { return g.comm == comm.get(); });
        jobs.push_back(launch_of(comm, own));
    }
    for (std::size_t i = 0; i < comms.size(); ++i)
        if (const ncclResult_t code = start(lock, *comms[i], jobs[i]); code != ncclSuccess)
            result = code;
    return comms[0]->blocking() ? result : ncclInProgress;
}

ncclResult_t refuse(ncclComm& comm, ncclResult_t code) { return in_group(keep_error(comm, code)); }

ncclResult_t begin(const char* name, ncclComm_t comm, cudaStream_t stream, call c) {
    if (comm == nullptr) return in_group(ncclInvalidArgument);
    const int code = emulation::faulted(name);
    std::unique_lock lock(mutex);
    if (comm->revoked) return in_group(ncclInvalidUsage);
    if (code != 0) return refuse(*comm, ncclResult_t(code));
    if (const ncclResult_t no = usable(*comm); no != ncclSuccess) return refuse(*comm, no);
    if (const ncclResult_t no = check(*comm, c); no != ncclSuccess) return refuse(*comm, no);
    // NCCL works on a thread of its own, which has another stream of this name.
    if (stream == cudaStreamPerThread && !comm->blocking())
        emulation::die("a nonblocking communicator is given cudaStreamPerThread");
    stream = emulation::resolved(stream);
    if (emulation::refused(stream) != cudaSuccess) return refuse(*comm, ncclUnhandledCudaError);
    if (c.op == ncclAvg) {
        c.scalar = 1.0 / comm->clique->size;
        c.op = ncclSum;
    } else if (c.op >= ncclNumOps) {
        c.scalar = comm->scaled_sums.at(int(c.op)).scalar;
        c.op = ncclSum;
    }
    if (in_window(*comm, c.in) && in_window(*comm, c.out)) ++calls_between_windows;
    const grouped g{comm, stream, c};
    if (comm->clique->size == 1 && !is_message(c)) {  // it needs no group
        emulation::enqueue(stream, kernel_of(g));
        return ncclSuccess;
    }
    group.push_back(g);
    if (group_depth > 0) return state_of(*comm);
    const ncclResult_t launched = launch_group(lock);
    return launched == ncclInProgress ? state_of(*comm) : launched;
}

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

// The job of a call in which `expected` ranks meet. A rank whose job fails has not come.
job meet(ncclComm& comm, int flavour, int expected, arrival mine,
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

std::optional<ncclConfig_t> parsed(const ncclConfig_t* given, const ncclConfig_t& otherwise) {
    if (given == nullptr) return otherwise;
    ncclConfig_t config = *given;
    if (config.magic != 0xcafebeef) return {};
    if (config.blocking == NCCL_CONFIG_UNDEF_INT) config.blocking = 1;
    if (config.blocking != 0 && config.blocking != 1) return {};
    return config;
}

// The first place of a window that is free on this rank.
window_place free_place(const ncclComm& comm, std::size_t bytes) {
    const int granules = int((bytes + window_granule - 1) / window_granule);
    window_place found{bytes, 0, granules};
    const auto is_taken = [&](const auto& w) {
        return w.second.place < found.end && found.place < w.second.end;
    };
    for (auto taken = std::find_if(comm.windows.begin(), comm.windows.end(), is_taken);
         taken != comm.windows.end();
         taken = std::find_if(comm.windows.begin(), comm.windows.end(), is_taken))
        found = {bytes, taken->second.end, taken->second.end + granules};
    return found;
}

// The calls that make communicators and windows stand outside of groups in the emulation.
void not_in_a_group(const char* name) {
    if (group_depth > 0) emulation::die(std::string(name) + " in a group");
}

ncclResult_t forget(ncclComm_t comm) {
    const shared_comm last = comm->shared_from_this();
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

namespace emulation {

void forget_disagreements() {
    const std::lock_guard lock(mutex);
    differences.clear();
    calls_between_windows = 0;
}

}  // namespace emulation

std::vector<std::string> emulation::disagreements() {
    const std::lock_guard lock(mutex);
    return differences;
}

void emulation::kill(ncclComm_t comm) {
    const std::lock_guard lock(mutex);
    comm->clique->dead[std::size_t(comm->rank)] = true;
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

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (version == nullptr) return ncclInvalidArgument;
    const int told = emulation::answer_of("ncclGetVersion");
    *version = told == 1 ? NCCL_VERSION_CODE : told;
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
    *id = {};
    ++ids;
    std::memcpy(id->internal, &ids, sizeof ids);
    return ncclSuccess;
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
    auto& all = cliques[std::string(id.internal, sizeof id.internal)];
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
    const std::lock_guard lock(mutex);
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

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t where, ncclComm_t comm) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (comm == nullptr) return ncclInvalidArgument;
    const std::lock_guard lock(mutex);
    if (const ncclResult_t no = usable(*comm); no != ncclSuccess) return no;
    if (where != ncclScalarHostImmediate) return ncclInvalidArgument;
    if (int(type) < 0 || type >= ncclNumTypes) return ncclInternalError;
    const double value = emulation::with_type(type, [scalar](auto zero) {
        std::memcpy(&zero, scalar, sizeof zero);
        return double(zero);
    });
    comm->scaled_sums[operations] = {value, type};
    *op = ncclRedOp_t(operations++);
    return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (comm == nullptr) return ncclInvalidArgument;
    const std::lock_guard lock(mutex);
    return comm->scaled_sums.erase(int(op)) == 1 ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t n, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    return begin(__func__, comm, stream, {kind::allreduce, in, out, n, type, op});
}
ncclResult_t ncclReduce(const void* in, void* out, size_t n, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
    return begin(__func__, comm, stream, {kind::reduce, in, out, n, type, op, 1, root});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t n, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return begin(__func__, comm, stream, {kind::reduce_scatter, in, out, n, type, op});
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t n, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    return begin(__func__, comm, stream, {kind::broadcast, in, out, n, type, ncclSum, 1, root});
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t n, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    return begin(__func__, comm, stream, {kind::allgather, in, out, n, type});
}
ncclResult_t ncclAlltoAll(const void* in, void* out, size_t n, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
    return begin(__func__, comm, stream, {kind::alltoall, in, out, n, type});
}
ncclResult_t ncclGather(const void* in, void* out, size_t n, ncclDataType_t type, int root,
                        ncclComm_t comm, cudaStream_t stream) {
    return begin(__func__, comm, stream, {kind::gather, in, out, n, type, ncclSum, 1, root});
}
ncclResult_t ncclScatter(const void* in, void* out, size_t n, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t stream) {
    return begin(__func__, comm, stream, {kind::scatter, in, out, n, type, ncclSum, 1, root});
}
ncclResult_t ncclSend(const void* in, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return begin(__func__, comm, stream, {kind::send, in, nullptr, n, type, ncclSum, 1, peer});
}
ncclResult_t ncclRecv(void* out, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return begin(__func__, comm, stream, {kind::receive, nullptr, out, n, type, ncclSum, 1, peer});
}

// Registers any memory of the device, for this rank alone.
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* memory, size_t bytes, void** handle) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (comm == nullptr || handle == nullptr || !on_device(memory)) return ncclInvalidArgument;
    emulation::seen_by_device(memory, bytes);
    const std::lock_guard lock(mutex);
    if (comm->registrations.insert(memory).second) emulation::count_object(1);
    *handle = memory;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (comm == nullptr) return ncclInvalidArgument;
    if (handle == nullptr) return ncclSuccess;
    const std::lock_guard lock(mutex);
    if (comm->registrations.erase(handle) == 0) return ncclInvalidArgument;
    emulation::count_object(-1);
    return ncclSuccess;
}

// A window is the same for all ranks, which meet to make it. Its memory is of ncclMemAlloc.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, size_t bytes,
                                    ncclWindow_t* window, int) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    not_in_a_group(__func__);
    if (comm == nullptr || window == nullptr) return ncclInvalidArgument;
    if (memory == nullptr || bytes == 0) return ncclSuccess;
    std::unique_lock lock(mutex);
    if (const ncclResult_t no = usable(*comm); no != ncclSuccess) return no;
    const auto* const address = static_cast<const std::byte*>(memory);
    auto owner = window_memory.upper_bound(address);
    const bool owned = owner != window_memory.begin() &&
                       address + bytes <= std::prev(owner)->first + std::prev(owner)->second;
    const window_place opened = free_place(*comm, bytes);
    job work =
        meet(*comm, window_flavour, comm->clique->size, {0, opened.place, comm->rank, nullptr},
             [=](ncclResult_t ended) {
                 if (ended == ncclSuccess && comm->windows.emplace(memory, opened).second)
                     emulation::count_object(1);
                 write_result(window, ended == ncclSuccess ? reinterpret_cast<ncclWindow_t>(memory)
                                                           : nullptr);
             });
    if (!owned) work.refusal = ncclUnhandledCudaError;
    else if (std::size_t(address - std::prev(owner)->first) % window_alignment != 0)
        work.refusal = ncclInvalidArgument;
    const ncclResult_t state = start(lock, *comm, std::move(work));
    return comm->blocking() ? state : ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (comm == nullptr) return ncclInvalidArgument;
    if (window == nullptr) return ncclSuccess;
    const std::lock_guard lock(mutex);
    if (comm->windows.erase(window) == 0) return ncclInvalidArgument;
    emulation::count_object(-1);
    return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) {
    if (const int code = emulation::unsafe(__func__)) return ncclResult_t(code);
    if (pointer == nullptr) return ncclInvalidArgument;
    if (!emulation::allocate_on_device(pointer, bytes)) return ncclUnhandledCudaError;
    const std::lock_guard lock(mutex);
    if (*pointer != nullptr) window_memory[static_cast<std::byte*>(*pointer)] = bytes;
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void* pointer) {
    if (const int code = emulation::unsafe(__func__)) return ncclResult_t(code);
    {
        const std::lock_guard lock(mutex);
        for (const shared_comm& comm : live)
            if (comm->windows.contains(pointer))
                emulation::die("memory is freed that a window of NCCL has");
        window_memory.erase(static_cast<std::byte*>(pointer));
    }
    return cudaFree(pointer) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclGroupStart() {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    ++group_depth;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
    const int code = emulation::faulted(__func__);
    if (group_depth == 0) return ncclInvalidUsage;
    if (--group_depth > 0) return ncclSuccess;
    std::unique_lock lock(mutex);
    if (code != 0) group_error = ncclResult_t(code);
    return launch_group(lock);
}

}  // extern "C"
