// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The collectives and messages of NCCL, which are launched in groups.

#include "nccl_comm.hpp"

using namespace emulated_nccl;

namespace {

int operations = int(ncclNumOps);  // numbers of destroyed operations are not used again

// NCCL has room for so many operations between ncclGroupStart and ncclGroupEnd (NCCL_MAX_OPS).
constexpr std::size_t most_operations = 2048;

struct grouped {
    ncclComm_t comm;
    cudaStream_t stream;
    call what;
};
thread_local std::vector<grouped> group;

// Notes a difference between the ranks that have come to a call. Returns false if there is one.
bool have_agreed(const clique& all, std::uint64_t number) {
    const call& first = all.call_of(0, number).what;
    for (int r = 1; r < all.size; ++r) {
        const call& other = all.call_of(r, number).what;
        if (same_call(first, other)) continue;
        report("call " + std::to_string(number) + ": rank 0 has " + first.text() + ", rank " +
               std::to_string(r) + " has " + other.text());
        return false;
    }
    return true;
}

// The kernel of a rank, when all have come. Each rank reduces a slice of an allreduce.
void carry_out(std::unique_lock<std::mutex>& lock, const ncclComm& comm, std::uint64_t number) {
    const clique& all = *comm.clique;
    const emulation::collective c = all.seen(number);
    const auto is_given_up = [&] { return all.has_been_given_up(number); };
    if (!comm.aborted && !is_given_up() && !all.input_is_as_posted(number))
        report("call " + std::to_string(number) + ": the input of rank " +
               std::to_string(comm.rank) + " was written during the call");
    if (c.own.what == kind::allreduce && !is_given_up()) {
        emulation::reduce_slice(c);
        all.call_of(comm.rank, number).reduced = true;
        changed.notify_all();
        await(lock, comm, [&] { return all.have_reduced(number) || is_given_up(); });
    }
    if (comm.aborted) return;
    if (is_given_up()) emulation::write_garbage(c.own, comm.rank, all.size);
    else emulation::write_outputs(c);
}

// The kernel of a collective, on the stream of one rank.
void take_part(const shared_comm& comm, std::uint64_t number, const call& c) {
    std::unique_lock lock(mutex);
    clique& all = *comm->clique;
    const std::size_t bytes = comm->aborted ? 0 : emulation::bytes_brought(c, comm->rank, all.size);
    if (!await(lock, *comm, [&] { return all.has_room_for_call(number, bytes); })) return;
    all.post(number, c, comm->aborted);
    changed.notify_all();
    emulation::faulted("ncclDevKernel");  // a moment at which the process may be killed
    if (!await(lock, *comm, [&] { return all.have_come_to(number); })) return;
    if (have_agreed(all, number)) carry_out(lock, *comm, number);
    all.leave_call(number);
    changed.notify_all();
}

// The messages of one group. All are sent before one is waited for.
void exchange(const shared_comm& comm, const std::vector<call>& messages) {
    std::unique_lock lock(mutex);
    if (comm->aborted) return;
    clique& all = *comm->clique;
    for (const call& c : messages) {
        if (c.what != kind::send) continue;
        const std::size_t bytes = c.count * emulation::size_of(c.type);
        if (!await(lock, *comm, [&] { return all.has_room_for_message(c.root, bytes); })) return;
        all.send(c.root, bytes > 0 ? emulation::seen_by_device(c.in, bytes) : nullptr, bytes);
    }
    changed.notify_all();
    for (const call& c : messages) {
        if (c.what != kind::receive) continue;
        await(lock, *comm, [&] { return all.has_message(c.root); });
        if (comm->aborted) return;
        const std::size_t bytes = c.count * emulation::size_of(c.type);
        const auto message = all.message(c.root);
        if (message.size() != bytes)
            report("rank " + std::to_string(c.root) + " sent " + std::to_string(message.size()) +
                   " bytes to rank " + std::to_string(comm->rank) + ", which expects " +
                   std::to_string(bytes));
        else if (bytes > 0)
            std::memcpy(emulation::seen_by_device(c.out, bytes), message.data(), bytes);
        all.take_message(c.root);
        changed.notify_all();
    }
}

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

// The kernel of a call. It takes its place in the order when it is launched: in a graph whenever
// that is.
emulation::task_maker kernel_of(const grouped& g) {
    const auto comm = g.comm->shared_from_this();
    const auto at = [=, what = g.what](std::uint64_t number) {
        return [=] { take_part(comm, number, what); };
    };
    if (emulation::is_capturing(g.stream)) return [=] { return at(comm->next_round++); };
    return [=, number = comm->next_round++] { return at(number); };
}

// Ranks connect at the first collective, and at the first message between two of them.
std::function<bool()> connection_of(const shared_comm& comm, const std::vector<grouped>& calls) {
    rank_part& own = comm->clique->own();
    std::vector<std::pair<int, kind>> awaited;
    bool collective = false;
    for (const grouped& g : calls) {
        const int peer = g.what.root;
        if (!is_message(g.what)) {
            collective = own.connects = true;
        } else if (peer != comm->rank) {
            const bool sends = g.what.what == kind::send;
            (sends ? own.sends_to : own.receives_from)[peer] = true;
            awaited.push_back({peer, sends ? kind::receive : kind::send});
        }
    }
    changed.notify_all();
    return [comm, collective, awaited] {
        const clique& all = *comm->clique;
        for (int r = 0; collective && r < all.size; ++r)
            if (!all.part(r).connects) return false;
        return std::all_of(awaited.begin(), awaited.end(), [&](const auto& c) {
            const rank_part& peer = all.part(c.first);
            return (c.second == kind::send ? peer.sends_to : peer.receives_from)[comm->rank].load();
        });
    };
}

using kernel_list = std::vector<std::pair<cudaStream_t, emulation::task_maker>>;

void launch(const kernel_list& kernels) {
    for (const auto& [stream, kernel] : kernels) emulation::enqueue_made(stream, kernel);
}

// NCCL's thread is in the launches until the kernels are done, unless a graph takes them.
job blocking_launch(std::function<bool()> is_connected, const kernel_list& kernels) {
    using ends_of_kernels = std::vector<std::function<bool()>>;
    const auto ends = std::make_shared<std::optional<ends_of_kernels>>();
    const auto ready = [=] {
        if (!*ends && is_connected()) {
            launch(kernels);
            ends->emplace();
            for (const auto& [stream, kernel] : kernels)
                if (!emulation::is_capturing(stream))
                    (*ends)->push_back(emulation::end_of_work(stream));
        }
        return *ends && std::all_of((*ends)->begin(), (*ends)->end(),
                                    [](const auto& is_over) { return is_over(); });
    };
    return {ready, [](ncclResult_t) {}};
}

// The calls of a group on one communicator. Messages on one stream are one kernel.
job launch_of(const shared_comm& comm, const std::vector<grouped>& calls) {
    kernel_list kernels;
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
        kernels.emplace_back(stream,
                             [=, m = std::move(several)] { return [=] { exchange(comm, m); }; });
    auto is_connected = connection_of(comm, calls);
    if (emulation::launches_block()) return blocking_launch(std::move(is_connected), kernels);
    return {std::move(is_connected), [kernels](ncclResult_t result) {
                if (result == ncclSuccess) launch(kernels);
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
        emulation::enqueue_made(stream, kernel_of(g));
        return ncclSuccess;
    }
    group.push_back(g);
    if (group_depth > 0) return state_of(*comm);
    const ncclResult_t launched = launch_group(lock);
    return launched == ncclInProgress ? state_of(*comm) : launched;
}

}  // namespace

extern "C" {

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
