// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include "../collective/allgather.hpp"
#include "../collective/allreduce.hpp"
#include "../collective/alltoall.hpp"
#include "../collective/barrier.hpp"
#include "../collective/broadcast.hpp"
#include "../collective/gather.hpp"
#include "../collective/reduce.hpp"
#include "../collective/reduce_scatter.hpp"
#include "../collective/scatter.hpp"
#include "core.hpp"

namespace hvd::inline v0 {

/// Options of a tensor that is submitted to an engine.
struct named_options {
    double prescale = 1;      ///< each rank's tensor is multiplied by it before a reduction
    double postscale = 1;     ///< the result of a reduction is multiplied by it
    int priority = 0;         ///< of the tensors that are ready, the highest goes first
    time_limit timeout = {};  ///< from the submission; then the engine is given up
    /// called when the tensor is complete, with its exception or null, by the thread that ran it.
    /// It may submit tensors. It must not wait for one, and must not throw
    std::function<void(std::exception_ptr)> then = {};
};

namespace detail {

// A list of one tensor is that tensor: if ranks disagree, they are told its shape.
inline void describe_single(call_header& h, const tensor_ref& t) {
    h.fused = false;
    h.content = 0;
    h.id = t.id;
    h.count = t.count;
    h.dimensions = t.dimensions;
    for (std::size_t d = 0; d < t.dimensions; ++d) h.extents[d] = t.extents[d];
    if (t.id == dtype::user) store(h.type, t.type);
}

// Describes a call that a rank has made for an engine.
template <class Call>
signature signature_of(Call& call) {
    const operation& op = call.op;
    signature mine;
    copy_header(mine.call, op.entry);
    mine.call.name[0] = mine.call.text[0] = 0;
    mine.call.refused = false;
    mine.fuses = merged_reduction::takes(op);
    mine.bytes = std::uint64_t(op.entry.count) * op.element_bytes;
    if (op.group_count > 0) {
        mine.bytes = 0;
        for (std::size_t i = 0; i < op.group_count; ++i) mine.bytes += op.groups[i].bytes();
    }
    if constexpr (requires { call.tensors; })
        if (mine.fuses && call.tensors.size() == 1) describe_single(mine.call, call.tensors[0]);
    if (mine.fuses) mine.call.id = op.groups[0].id;
    else if (op.group_count > 1) store(mine.call.type, "several types");
    return mine;
}

inline void refuse_wrong_name(int rank, std::string_view name) {
    constexpr std::size_t most = 65536;
    if (name.empty() || name.size() > most || name.find('\0') != name.npos)
        throw usage_error(
            rank, text("hvd: rank ", rank, ": a tensor of an engine needs a name ", "of 1 to ",
                       most, " bytes without NUL; this one has ", name.size()));
}

// The asynchronous calls of a communicator, which an engine keeps under a name. It lives for one
// call.
template <class Backend>
class named_calls : public allreduce_calls<named_calls<Backend>, Backend>,
                    public allgather_calls<named_calls<Backend>, Backend>,
                    public broadcast_calls<named_calls<Backend>, Backend>,
                    public reduce_calls<named_calls<Backend>, Backend>,
                    public gather_calls<named_calls<Backend>, Backend>,
                    public scatter_calls<named_calls<Backend>, Backend>,
                    public reduce_scatter_calls<named_calls<Backend>, Backend>,
                    public alltoall_calls<named_calls<Backend>, Backend>,
                    public barrier_calls<named_calls<Backend>, Backend> {
public:
    named_calls(engine_core& core, std::string_view name, const named_options& options)
        : core_(core), session_(&core.data()), name_(name), options_(options) {
        refuse_wrong_name(core.rank(), name);
    }

    // This rank has no tensor of that name.
    void refuse(std::string_view why) { core_.refuse_on_all(name_, signature{}, why); }

    // The list of a call. A view of the user's may throw.
    template <class X>
    auto list_of(X& x) {
        return core_.or_refuse(name_, [&] { return as_list(x); });
    }

    // For the functions of the communicator: see start_queued().
    template <class Queued, class Options, class Make>
    shared<Queued> keep(const Options& o, Make& make) {
        shared<Queued> call;
        signature mine;
        core_.or_refuse(name_, [&] {
            call = shared<Queued>::make(make);
            call->timeout = o.timeout;
            operation& op = *call->op;
            if (op.flaw.kind != flaw::none) tell_flaw(op, core_.size());
            mine = signature_of(call->call);
            mine.priority = options_.priority;
            store(op.entry.name, name_);
            if (o.timeout.is_wrong())
                op.entry.refuse(text("hvd: ", wrong_limit("timeout", o.timeout)));
        });
        core_.throw_unseen_instead_of(name_, mine);
        if (const call_header& h = call->op->entry; h.refused)
            core_.submit_refusal(name_, mine, h.text);
        core_.or_refuse(name_,
                        [&] { core_.submit(name_, call, mine, options_.then, &fill<Queued>); });
        return call;
    }

private:
    friend struct access;

    // Called once the engine has taken the name.
    template <class Queued>
    static void fill(queued& call) {
        if constexpr (requires(Queued& q) { q.call.fill(); })
            static_cast<Queued&>(call).call.fill();
    }

    engine_core& core_;
    session* session_;
    std::string_view name_;
    const named_options& options_;
};

}  // namespace detail
}  // namespace hvd::inline v0
