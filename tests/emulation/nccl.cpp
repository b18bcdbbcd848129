// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>

#include "reduction.hpp"

namespace {

enum class kind {
    allreduce,
    reduce,
    reduce_scatter,
    broadcast,
    allgather,
    gather,
    scatter,
    alltoall,
    send,
    receive
};
constexpr const char* kind_names[] = {
    "ncclAllReduce", "ncclReduce",  "ncclReduceScatter", "ncclBroadcast", "ncclAllGather",
    "ncclGather",    "ncclScatter", "ncclAlltoAll",      "ncclSend",      "ncclRecv"};

struct call {
    kind what;
    const void* in;
    void* out;
    std::size_t count;
    ncclDataType_t type;
    ncclRedOp_t op = ncclSum;
    double scalar = 1;
    int root = 0;  // or the peer

    std::string text() const {
        return std::string(kind_names[int(what)]) + " count " + std::to_string(count) + " type " +
               std::to_string(type) + " op " + std::to_string(op) + " root " + std::to_string(root);
    }
};

struct round {
    std::vector<call> calls;
    std::vector<bool> arrived;
    bool done = false;

    explicit round(int size) : calls(std::size_t(size)), arrived(std::size_t(size)) {}
};

// The data that the ranks of one communicator share.
struct clique {
    int size;
    int joined = 0;
    std::vector<bool> dead = std::vector<bool>(std::size_t(size));
    std::map<std::uint64_t, round> rounds;
    std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> mail;
    // Ranks that derive a communicator from this one meet by the number of the derivation.
    struct arrival {
        int color, key, rank;
        std::shared_ptr<ncclComm> comm;
    };
    std::map<std::pair<std::uint64_t, int>, std::vector<arrival>> meetings;

    explicit clique(int n) : size(n) {}
};

// Guards all data below. One mutex is enough, since ranks are few.
std::mutex mutex;
std::condition_variable changed;
std::set<std::shared_ptr<ncclComm>> live;
// cliques that ranks have yet to join, by id
std::map<std::string, std::shared_ptr<clique>> cliques;
std::vector<std::string> differences;
std::uint64_t ids = 0;

struct grouped {
    ncclComm_t comm;
    cudaStream_t stream;
    call what;
};
thread_local int group_depth = 0;
thread_local std::vector<grouped> group;

}  // namespace

struct ncclComm : std::enable_shared_from_this<ncclComm> {
    std::shared_ptr<::clique> clique;
    int rank = -1;
    int device = 0;
    bool blocking = true;
    bool aborted = false;
    bool initialised = false;
    ncclResult_t error = ncclSuccess;
    int polls = 0;                                // polls before the deferred calls happen
    std::vector<std::function<void()>> deferred;  // the calls that were made
    std::uint64_t next_round = 0, next_meeting = 0;
    std::map<int, double> scalars;  // scalars of ncclRedOpCreatePreMulSum

    bool ready() const { return clique != nullptr && clique->joined == clique->size; }
    bool busy() const { return !ready() || polls > 0 || !deferred.empty(); }
};

namespace {

using shared_comm = std::shared_ptr<ncclComm>;

void report(std::string difference) { differences.push_back(std::move(difference)); }

// Waits until `arrived`. It returns false if the communicator is aborted first. A dead peer is
// noticed, but a kernel that waits for it goes on waiting.
template <class F>
bool wait_for(std::unique_lock<std::mutex>& lock, ncclComm& comm, F arrived) {
    while (!arrived() && !comm.aborted) {
        for (const bool dead : comm.clique->dead)
            if (dead && comm.error == ncclSuccess) comm.error = ncclRemoteError;
        changed.wait(lock);
    }
    return !comm.aborted;
}

struct buffers {
    const round& all;
    std::size_t element;

    std::byte* in(int rank, std::size_t first, std::size_t count) const {
        return at(all.calls[std::size_t(rank)].in, first, count);
    }
    std::byte* out(int rank, std::size_t first, std::size_t count) const {
        return at(all.calls[std::size_t(rank)].out, first, count);
    }

private:
    std::byte* at(const void* address, std::size_t first, std::size_t count) const {
        if (count == 0) return nullptr;
        return emulation::seen_by_device(static_cast<const std::byte*>(address) + first * element,
                                         count * element);
    }
};

void move_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
    if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

std::vector<std::byte> reduce_all(const round& r, const buffers& b, std::size_t count) {
    std::vector<const std::byte*> inputs;
    std::vector<double> scalars;
    for (std::size_t rank = 0; rank < r.calls.size(); ++rank) {
        inputs.push_back(b.in(int(rank), 0, count));
        scalars.push_back(r.calls[rank].scalar);
    }
    const call& c = r.calls.front();
    return emulation::with_type(c.type, [&](auto zero) {
        return emulation::reduced<decltype(zero)>(c.op, inputs, scalars, count);
    });
}

// Moves the data once all ranks are here.
void perform(const round& r) {
    const call& c = r.calls.front();
    const int size = int(r.calls.size());
    const std::size_t n = c.count, element = emulation::size_of(c.type), bytes = n * element;
    const buffers b{r, element};
    const std::size_t whole = n * std::size_t(size);
    switch (c.what) {
        case kind::allreduce: {
            const auto result = reduce_all(r, b, n);
            for (int p = 0; p < size; ++p) move_bytes(b.out(p, 0, n), result.data(), bytes);
            return;
        }
        case kind::reduce:
            return move_bytes(b.out(c.root, 0, n), reduce_all(r, b, n).data(), bytes);
        case kind::reduce_scatter: {
            const auto result = reduce_all(r, b, whole);
            for (int p = 0; p < size; ++p)
                move_bytes(b.out(p, 0, n), result.data() + std::size_t(p) * bytes, bytes);
            return;
        }
        case kind::broadcast:
            for (int p = 0; p < size; ++p) move_bytes(b.out(p, 0, n), b.in(c.root, 0, n), bytes);
            return;
        case kind::allgather:
            for (int p = 0; p < size; ++p)
                for (int q = 0; q < size; ++q)
                    move_bytes(b.out(p, std::size_t(q) * n, n), b.in(q, 0, n), bytes);
            return;
        case kind::gather:
            for (int q = 0; q < size; ++q)
                move_bytes(b.out(c.root, std::size_t(q) * n, n), b.in(q, 0, n), bytes);
            return;
        case kind::scatter:
            for (int q = 0; q < size; ++q)
                move_bytes(b.out(q, 0, n), b.in(c.root, std::size_t(q) * n, n), bytes);
            return;
        case kind::alltoall:
            for (int p = 0; p < size; ++p)
                for (int q = 0; q < size; ++q)
                    move_bytes(b.out(p, std::size_t(q) * n, n), b.in(q, std::size_t(p) * n, n),
                               bytes);
            return;
        default: return;
    }
}

bool same_call(const call& a, const call& b) {
    return std::tie(a.what, a.count, a.type, a.op, a.root) ==
           std::tie(b.what, b.count, b.type, b.op, b.root);
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
    if (other == r.calls.end()) perform(r);
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
            move_bytes(emulation::seen_by_device(c.out, bytes), box.front().data(), bytes);
        box.pop_front();
    }
}

// On a nonblocking communicator, the call happens some polls later.
void submit(ncclComm& comm, std::function<void()> work) {
    if (comm.blocking) return work();
    comm.deferred.push_back(std::move(work));
    comm.polls = int(emulation::random_number() % 4);
}

ncclResult_t state_of(const ncclComm& comm) {
    return comm.error != ncclSuccess ? comm.error : comm.busy() ? ncclInProgress : ncclSuccess;
}

// Returns an error while an earlier call is in progress.
ncclResult_t admitted(ncclComm_t comm) {
    if (comm == nullptr) return ncclInvalidArgument;
    const std::lock_guard lock(mutex);
    if (comm->error != ncclSuccess || comm->aborted) return ncclInvalidUsage;
    return comm->busy() ? ncclInvalidUsage : ncclSuccess;
}

ncclResult_t launch_group() {
    const std::vector<grouped> calls = std::move(group);
    group.clear();
    ncclResult_t result = ncclSuccess;
    std::vector<std::tuple<ncclComm_t, cudaStream_t, std::vector<call>>> messages;
    const std::lock_guard lock(mutex);
    for (const grouped& g : calls) {
        if (!g.comm->blocking) result = ncclInProgress;
        if (g.what.what == kind::send || g.what.what == kind::receive) {
            if (messages.empty() || std::get<0>(messages.back()) != g.comm ||
                std::get<1>(messages.back()) != g.stream)
                messages.emplace_back(g.comm, g.stream, std::vector<call>());
            std::get<2>(messages.back()).push_back(g.what);
            continue;
        }
        const auto comm = g.comm->shared_from_this();
        // A call in a graph takes its place in the order whenever the graph runs.
        if (emulation::is_capturing(g.stream))
            submit(*g.comm, [=] {
                emulation::enqueue(g.stream,
                                   [=] { take_part(comm, next_round_of(*comm), g.what); });
            });
        else
            submit(*g.comm, [=, number = g.comm->next_round++] {
                emulation::enqueue(g.stream, [=] { take_part(comm, number, g.what); });
            });
    }
    for (auto& [comm, stream, several] : messages)
        submit(*comm, [c = comm->shared_from_this(), s = stream, m = std::move(several)] {
            emulation::enqueue(s, [=] { exchange(c, m); });
        });
    return result;
}

ncclResult_t begin(const char* name, ncclComm_t comm, cudaStream_t stream, call c) {
    if (const int code = emulation::faulted(name)) return ncclResult_t(code);
    if (const ncclResult_t no = admitted(comm); no != ncclSuccess) return no;
    // NCCL works on a thread of its own, which has another stream of this name.
    if (stream == cudaStreamPerThread && !comm->blocking)
        emulation::die("a nonblocking communicator is given cudaStreamPerThread");
    stream = emulation::resolved(stream);
    if (emulation::refused(stream) != cudaSuccess) return ncclUnhandledCudaError;
    const std::size_t element = emulation::size_of(c.type);
    if (c.root < 0 || c.root >= comm->clique->size || element == 0) return ncclInvalidArgument;
    if (c.op == ncclAvg) {
        c.scalar = 1.0 / comm->clique->size;
        c.op = ncclSum;
    } else if (c.op >= ncclNumOps) {
        c.scalar = comm->scalars.at(int(c.op));
        c.op = ncclSum;
    }
    group.push_back({comm, stream, c});
    return group_depth > 0 ? (comm->blocking ? ncclSuccess : ncclInProgress) : launch_group();
}

shared_comm make_comm(int device, bool blocking) {
    auto comm = std::make_shared<ncclComm>();
    comm->device = device;
    comm->blocking = blocking;
    live.insert(comm);
    emulation::count_object(1);
    return comm;
}

void join(ncclComm& comm, std::shared_ptr<clique> all, int rank) {
    comm.clique = std::move(all);
    comm.rank = rank;
    ++comm.clique->joined;
    comm.polls = comm.blocking ? 0 : int(emulation::random_number() % 4);
}

// The last of `expected` ranks makes the communicators of all, one for each colour.
void meet(ncclComm& parent, int flavour, int expected, clique::arrival mine) {
    auto& arrivals = parent.clique->meetings[{parent.next_meeting++, flavour}];
    arrivals.push_back(std::move(mine));
    if (int(arrivals.size()) < expected) return;
    std::sort(arrivals.begin(), arrivals.end(), [](const auto& a, const auto& b) {
        return std::tie(a.color, a.key, a.rank) < std::tie(b.color, b.key, b.rank);
    });
    for (auto first = arrivals.begin(); first != arrivals.end();) {
        const auto last = std::find_if(first, arrivals.end(),
                                       [&](const auto& a) { return a.color != first->color; });
        const auto all = std::make_shared<clique>(int(last - first));
        int rank = 0;
        for (auto a = first; a != last; ++a)
            if (a->comm) join(*a->comm, all, rank++);
        first = last;
    }
    changed.notify_all();
}

bool blocks(const ncclConfig_t* config) { return config == nullptr || config->blocking != 0; }

ncclResult_t forget(ncclComm_t comm) {
    const std::lock_guard lock(mutex);
    const shared_comm last = comm->shared_from_this();
    withdraw(*last);
    last->deferred.clear();  // it holds the communicator too
    if (live.erase(last) > 0) emulation::count_object(-1);
    changed.notify_all();
    return ncclSuccess;
}

ncclResult_t settled(std::unique_lock<std::mutex>& lock, ncclComm& comm) {
    changed.notify_all();
    if (!comm.blocking) return ncclInProgress;
    changed.wait(lock, [&] { return comm.ready(); });
    return ncclSuccess;
}

}  // namespace

namespace emulation {

void forget_disagreements() {
    const std::lock_guard lock(mutex);
    differences.clear();
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

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
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
    const std::lock_guard lock(mutex);
    *id = {};
    ++ids;
    std::memcpy(id->internal, &ids, sizeof ids);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* result, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (rank < 0 || rank >= size || (config != nullptr && config->magic != 0xcafebeef))
        return ncclInvalidArgument;
    int device = 0;
    cudaGetDevice(&device);
    std::unique_lock lock(mutex);
    auto& all = cliques[std::string(id.internal, sizeof id.internal)];
    if (!all) all = std::make_shared<clique>(size);
    const auto comm = make_comm(device, blocks(config));
    join(*comm, all, rank);
    *result = comm.get();
    return settled(lock, *comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    std::vector<std::function<void()>> now;
    {
        const std::lock_guard lock(mutex);
        // The part of an initialisation that another thread does. Its failure is seen by all ranks.
        if (!std::exchange(comm->initialised, true))
            if (const int code = emulation::faulted("ncclCommInitRankFunc")) {
                comm->error = ncclResult_t(code);
                comm->clique->dead[std::size_t(comm->rank)] = true;
            }
        if (comm->polls > 0) --comm->polls;
        else if (comm->ready()) now.swap(comm->deferred);
        if (comm->clique != nullptr)
            for (const bool dead : comm->clique->dead)
                if (dead && comm->error == ncclSuccess && !comm->aborted)
                    comm->error = ncclRemoteError;
        for (const auto& work : now) work();
        *state = state_of(*comm);
    }
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (const ncclResult_t no = admitted(comm); no != ncclSuccess) return no;
    *count = comm->clique->size;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (const ncclResult_t no = admitted(comm); no != ncclSuccess) return no;
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (const ncclResult_t no = admitted(comm); no != ncclSuccess) return no;
    return comm->blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    return forget(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    return forget(comm);
}

// Ends calls under way. The communicator can only be shrunk or ended afterwards.
ncclResult_t ncclCommRevoke(ncclComm_t comm, int) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    const std::lock_guard lock(mutex);
    withdraw(*comm);
    comm->error = ncclSuccess;
    comm->deferred.clear();
    comm->polls = 0;
    changed.notify_all();
    return ncclSuccess;
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* result,
                           ncclConfig_t* config) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (const ncclResult_t no = admitted(parent); no != ncclSuccess) return no;
    std::unique_lock lock(mutex);
    const auto comm =
        color == NCCL_SPLIT_NOCOLOR ? nullptr : make_comm(parent->device, blocks(config));
    *result = comm.get();
    meet(*parent, 0, parent->clique->size, {color, key, parent->rank, comm});
    return comm ? settled(lock, *comm) : ncclSuccess;
}

ncclResult_t ncclCommShrink(ncclComm_t parent, int* excluded, int n, ncclComm_t* result,
                            ncclConfig_t* config, int flags) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (flags == NCCL_SHRINK_DEFAULT && !parent->aborted)
        if (const ncclResult_t no = admitted(parent); no != ncclSuccess) return no;
    std::unique_lock lock(mutex);
    if (std::find(excluded, excluded + n, parent->rank) != excluded + n) return ncclInvalidArgument;
    if (flags == NCCL_SHRINK_ABORT) withdraw(*parent);
    const auto comm = make_comm(parent->device, blocks(config));
    *result = comm.get();
    meet(*parent, 1, parent->clique->size - n, {0, parent->rank, parent->rank, comm});
    return settled(lock, *comm);
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t where, ncclComm_t comm) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (const ncclResult_t no = admitted(comm); no != ncclSuccess) return no;
    if (where != ncclScalarHostImmediate) return ncclInvalidArgument;
    const double value = emulation::with_type(type, [scalar](auto zero) {
        std::memcpy(&zero, scalar, sizeof zero);
        return double(zero);
    });
    int number = int(ncclNumOps);
    while (comm->scalars.contains(number)) ++number;
    comm->scalars[number] = value;
    *op = ncclRedOp_t(number);
    return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    return comm->scalars.erase(int(op)) == 1 ? ncclSuccess : ncclInvalidArgument;
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

// Registers memory of ncclMemAlloc, or a part of it. A window is the same for all ranks.
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* memory, size_t bytes, void** handle) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (const ncclResult_t no = admitted(comm); no != ncclSuccess) return no;
    emulation::seen_by_device(memory, bytes);
    emulation::count_object(1);
    *handle = memory;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t, void*) {
    emulation::count_object(-1);
    return ncclSuccess;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, size_t bytes,
                                    ncclWindow_t* window, int) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (const ncclResult_t no = admitted(comm); no != ncclSuccess) return no;
    emulation::seen_by_device(memory, bytes);
    emulation::count_object(1);
    *window = reinterpret_cast<ncclWindow_t>(memory);
    return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) {
    emulation::count_object(-1);
    return ncclSuccess;
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
    if (code != 0) {
        group.clear();
        return ncclResult_t(code);
    }
    return launch_group();
}

}  // extern "C"
