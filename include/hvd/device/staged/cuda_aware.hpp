// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../backend/direct.hpp"
#include "../../platform/cuda_aware_mpi.hpp"
#include "communicator.hpp"

namespace hvd::inline v0::detail {

// Hands movements of device tensors to MPI as they are. Reductions are staged.
template <class Host>
class cuda_aware_session final : public staged_session<Host> {
    using base = staged_session<Host>;

public:
    cuda_aware_session(communicator<Host> host, communicator<direct<Host>> direct, int device,
                       const communicator_options& options)
        : base(std::move(host), device, options), direct_(std::move(direct)) {}

    ~cuda_aware_session() { this->stop_watching(); }

    static std::shared_ptr<cuda_aware_session> make(communicator<Host>& bootstrap,
                                                    const communicator_options& options) {
        constexpr const char* name = "communicator<cuda_aware<mpi>>";
        meet(bootstrap, name, options);
        auto host = own_duplicate(bootstrap);
        communicator_options of_direct = options;
        of_direct.timeout = {};  // that of the calls on the host holds
        communicator<direct<Host>> direct(host.native_handle(), borrow, of_direct);
        return make_on_all(bootstrap, name, options, [&] {
            if (!is_cuda_aware())
                throw usage_error(host.rank(),
                                  text("hvd: communicator<cuda_aware<mpi>> on rank ", host.rank(),
                                       ": this MPI says that it does not take device memory; use "
                                       "hvd::staged<hvd::mpi>, "
                                       "or set HVD_MPI_CUDA_AWARE=1 if it does"));
            return std::make_shared<cuda_aware_session>(std::move(host), std::move(direct),
                                                        device_of_this_thread(bootstrap.rank()),
                                                        options);
        });
    }

    // The ranks do not compare calls that MPI itself makes.
    void post_refusal(const call_header& mine, time_point limit) override {
        if (compares(mine.kind)) base::post_refusal(mine, limit);
    }
    bool compares(collective kind) const override {
        collective_call call;
        call.entry.kind = kind;
        return call.reduces();
    }

    bool exchanges_in_place() const override { return false; }

private:
    void run(const collective_call& call, cudaStream_t stream, time_point limit) override {
        const collective kind = call.entry.kind;
        const int me = this->rank(), size = this->size();
        if (size == 1 || call.reduces() || kind == collective::barrier)
            return base::run(call, stream, limit);
        // MPI knows no streams.
        this->wait(this->mark(stream), name_of(kind), limit);
        const call_parts p{call, size};
        const bool in_place = kind == collective::broadcast;
        // Both sides know all numbers, so MPI is not asked for them.
        std::vector<std::size_t> counts, received;
        for (int r = 0; r < size; ++r) {
            counts.push_back(call.count_of(r));
            received.push_back(kind != collective::scatter ? call.received_from(r)
                               : p.is_root(r)              ? call.count_of(me)
                                                           : 0);
        }
        const std::size_t given = in_place || p.gives(me) ? p.given_by(me) : 0,
                          taken = in_place || p.copies(me) ? p.taken_by(me) : 0;
        host_call on_mpi(call, kind, const_cast<std::byte*>(call.in), given / call.element_bytes,
                         call.out, taken / call.element_bytes, me);
        if (kind != collective::scatter || p.is_root(me)) on_mpi.op.counts = counts;
        on_mpi.op.receive_counts = received;
        hvd::detail::session& own = access::session_of(direct_);
        own.run(own, on_mpi.op, {});
    }

    communicator<direct<Host>> direct_;
};

}  // namespace hvd::inline v0::detail
