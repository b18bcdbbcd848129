// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../backend/direct.hpp"
#include "../../platform/cuda_aware_mpi.hpp"
#include "communicator.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// What moves goes to MPI as it is, what reduces is staged.
class cuda_aware_session final : public staged_session<mpi> {
public:
    cuda_aware_session(communicator<mpi> host, communicator<direct<mpi>> direct, int device,
                       const communicator_options& options)
        : staged_session<mpi>(std::move(host), device, options), direct_(std::move(direct)) {}

    static std::shared_ptr<cuda_aware_session> make(communicator<mpi>& bootstrap,
                                                    const communicator_options& options) {
        meet_before_making(bootstrap, options);
        auto host = bootstrap.split(0, bootstrap.rank());
        communicator<direct<mpi>> direct(host.native_handle(), borrow, options);
        return made_on_all(bootstrap, "communicator<cuda_aware<mpi>>", options.deadline, [&] {
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

    // What MPI itself moves is not compared.
    void post_refusal(const call_header& mine, time_point limit) override {
        if (device_call{.kind = mine.kind}.reduces())
            staged_session<mpi>::post_refusal(mine, limit);
    }

    bool exchanges_in_place() const override { return false; }

private:
    void run(const device_call& call, cudaStream_t stream, time_point limit) override {
        // direct<mpi> gathers equal parts only.
        const bool uneven = call.kind == collective::allgather && !call.counts.empty();
        if (size() == 1 || call.reduces() || call.kind == collective::barrier || uneven)
            return staged_session<mpi>::run(call, stream, limit);
        wait(mark(stream), collective_names[std::size_t(call.kind)],
             limit);  // MPI knows no streams
        const bool is_root = call.root == rank();
        const std::size_t own = call.bytes_of(rank());
        std::vector<std::size_t> sent;
        std::size_t in = own, out = own;
        switch (call.kind) {
            case collective::allgather: out = call.total(size()) * call.element_bytes; break;
            case collective::gather:
                out = is_root ? call.total(size()) * call.element_bytes : 0;
                break;
            case collective::scatter:
            case collective::alltoall: {
                const bool sends = call.kind == collective::alltoall || is_root;
                in = 0;
                for (int p = 0; p < size(); ++p)
                    in += sent.emplace_back(sends ? call.bytes_of(p) : 0);
                if (call.kind == collective::alltoall)
                    out = call.total_received(size()) * call.element_bytes;
                break;
            }
            default: break;
        }
        move_bytes(direct_, call, rank(), {const_cast<std::byte*>(call.in), {in}},
                   {call.out, {out}}, sent, {});
    }

    communicator<direct<mpi>> direct_;
};

template <>
struct device_session_of<cuda_aware<mpi>> {
    using type = cuda_aware_session;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
