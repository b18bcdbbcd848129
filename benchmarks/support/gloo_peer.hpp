// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// Gloo between the ranks of a communicator, over TCP. That is its transport between hosts.
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <array>
#include <filesystem>
#include <memory>
#include <string>

#include "mpi_peer.hpp"

namespace bench {

class gloo_peer {
public:
    /// **Collective**: the ranks meet in a folder of rank 0 until all are connected.
    template <class Comm>
    explicit gloo_peer(Comm& comm, const char* own_address = "127.0.0.1") {
        std::string folder = (std::filesystem::temp_directory_path() / "hvd-bench-XXXXXX").string();
        if (comm.rank() == 0 && mkdtemp(folder.data()) == nullptr)
            throw std::runtime_error("bench: can't make " + folder);
        comm.broadcast(folder, hvd::root{0});
        auto context = std::make_shared<gloo::rendezvous::Context>(comm.rank(), comm.size());
        gloo::rendezvous::FileStore store(folder);
        gloo::transport::tcp::attr address(own_address);
        auto device = gloo::transport::tcp::CreateDevice(address);
        context->connectFullMesh(store, device);
        context_ = context;
        comm.barrier();
        if (comm.rank() == 0) std::filesystem::remove_all(folder);
    }

    void average(float* data, std::size_t count, bool ring) const {
        gloo::AllreduceOptions options(context_);
        options.setAlgorithm(ring ? gloo::AllreduceOptions::Algorithm::RING
                                  : gloo::AllreduceOptions::Algorithm::BCUBE);
        options.setOutput(data, count);
        options.setReduceFunction([](void* out, const void* a, const void* b, std::size_t n) {
            gloo::sum<float>(out, a, b, n);
        });
        gloo::allreduce(options);
        scale(data, count, context_->size);
    }

private:
    std::shared_ptr<gloo::Context> context_;
};

}  // namespace bench
