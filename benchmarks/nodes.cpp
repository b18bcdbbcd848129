// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Collectives over several nodes: hvd on MPI, without it and by Gloo, beside raw MPI and raw Gloo.
// nodes.py launches it on hosts with shaped cables. --node-size declares nodes of one host instead.
#include <hvd/tcp.hpp>
#if BENCH_WITH_OPENSSL
#include <hvd/interop/openssl.hpp>
#endif
#if BENCH_WITH_GLOO
#include <hvd/interop/gloo.hpp>

#include "support/gloo_peer.hpp"
#endif

#include "support/mpi_peer.hpp"
#include "support/pattern.hpp"
#include "support/table.hpp"

namespace {

struct node_options : bench::sweep_options {
    int node_size = 0;
    node_options() : sweep_options(std::size_t(1) << 10, std::size_t(16) << 20, 16) {}
};

using communicator = hvd::communicator<hvd::mpi>;

std::string own_address() {
    const std::vector<hvd::detail::host_address> own = hvd::detail::own_addresses();
    return own.empty() ? "127.0.0.1" : std::string(std::string_view(own[0].print()));
}

// A communicator without MPI among the processes that MPI has started. Rank 0 serves the
// rendezvous.
template <class Backend>
hvd::communicator<Backend> without_mpi(communicator& comm, const node_options& o) {
    namespace d = hvd::detail;
    d::shared_secret secret = d::new_secret();
    comm.broadcast(secret, hvd::root{0});
    std::vector<char> place(64);
    if (comm.rank() == 0) {
        const d::listening_socket reserved(0);
        const std::string written = own_address() + ":" + std::to_string(reserved.port());
        std::copy_n(written.c_str(), std::min(place.size() - 1, written.size()), place.data());
    }
    comm.broadcast(place, hvd::root{0});
    hvd::tcp_options own;
    own.rank = comm.rank();
    own.size = comm.size();
    own.rendezvous = place.data();
    own.secret = std::string_view(d::hex_of(secret));
    return hvd::communicator<Backend>::world(own, {.node_size = o.node_size});
}

class nodes {
public:
    nodes(communicator& comm, const node_options& o)
        : comm_(comm),
          o_(o),
          out_(comm, "nodes", o),
          own_(communicator::world({.node_size = o.node_size})),
          by_library_(communicator::world({.node_size = o.node_size, .mpi_between_nodes = true})),
          tcp_(without_mpi<hvd::tcp>(comm, o)),
#if BENCH_WITH_OPENSSL
          encrypted_(without_mpi<hvd::encrypted<hvd::tcp>>(comm, o)),
#endif
#if BENCH_WITH_GLOO
          gloo_(without_mpi<hvd::gloo>(comm, o)),
          plain_gloo_(comm, own_address().c_str()),
#endif
          tensor_(o.max_bytes / sizeof(float)) {
    }

    void run() {
        out_.set("nodes", own_.cross_size());
        out_.print("# {} nodes of {} ranks\n", own_.cross_size(), own_.local_size());
        out_.print("{}", bench::heading());
        for (std::size_t bytes = o_.min_bytes; bytes <= o_.max_bytes; bytes *= o_.factor) {
            allreduce(bytes / sizeof(float));
            broadcast(bytes / sizeof(float));
        }
        out_.write();
    }

private:
    void allreduce(std::size_t count) {
        const bench::mpi_peer<float, hvd::op::average> mpi{MPI_COMM_WORLD, comm_.size()};
        float* const x = tensor_.data();
        const auto add = [&](std::string name, std::function<void()> call) {
            candidates_.push_back(
                bench::average_in_place(comm_, std::move(name), x, count, std::move(call)));
        };
        add("hvd", [this, x, count] { own_.allreduce(hvd::view(x, count), hvd::average); });
        add("hvd by_library",
            [this, x, count] { by_library_.allreduce(hvd::view(x, count), hvd::average); });
        add("tcp", [this, x, count] { tcp_.allreduce(hvd::view(x, count), hvd::average); });
#if BENCH_WITH_OPENSSL
        add("encrypted",
            [this, x, count] { encrypted_.allreduce(hvd::view(x, count), hvd::average); });
#endif
#if BENCH_WITH_GLOO
        add("gloo", [this, x, count] { gloo_.allreduce(hvd::view(x, count), hvd::average); });
        for (const bool ring : {true, false})
            add(ring ? "plain gloo ring" : "plain gloo bcube",
                [this, x, count, ring] { plain_gloo_.average(x, count, ring); });
#endif
        add("mpi", [mpi, x, count] { mpi.allreduce(MPI_IN_PLACE, x, count); });
        print("all_reduce", "average", count);
    }

    void broadcast(std::size_t count) {
        float* const x = tensor_.data();
        // The root changes with each call, so that no root runs ahead of its receivers.
        const auto next = [this] { return root_ = (root_ + 1) % comm_.size(); };
        const auto add = [&](std::string name, std::function<void()> call) {
            candidates_.push_back({std::move(name), std::move(call),
                                   [=, this] { std::fill(x, x + count, float(comm_.rank())); },
                                   [=, this] {
                                       return bench::count_unequal(
                                           x, count, [this](std::size_t) { return root_; });
                                   }});
        };
        add("hvd", [=, this] { own_.broadcast(hvd::view(x, count), hvd::root{next()}); });
        add("tcp", [=, this] { tcp_.broadcast(hvd::view(x, count), hvd::root{next()}); });
#if BENCH_WITH_OPENSSL
        add("encrypted",
            [=, this] { encrypted_.broadcast(hvd::view(x, count), hvd::root{next()}); });
#endif
        add("mpi", [=] {
            bench::check(MPI_Bcast(x, int(count), MPI_FLOAT, next(), MPI_COMM_WORLD), "MPI_Bcast");
        });
        print("broadcast", "none", count);
    }

    // The ratio is each candidate's time over hvd's.
    void print(const char* collective, const char* op, std::size_t count) {
        const auto timings = bench::interleave(comm_, candidates_, o_.work);
        for (std::size_t c = 0; c < candidates_.size(); ++c) {
            bench::line line{.collective = collective,
                             .path = std::string(collective) + " " + candidates_[c].name,
                             .type = "float",
                             .op = op,
                             .size = count * sizeof(float),
                             .count = count};
            line.in_place = timings[c];
            line.ratio_in_place = timings[c].time / timings.front().time;
            bench::add_line(out_, line, comm_.size(), 0);
        }
        candidates_.clear();
    }

    communicator& comm_;
    const node_options& o_;
    bench::report<communicator> out_;
    communicator own_, by_library_;
    hvd::communicator<hvd::tcp> tcp_;
#if BENCH_WITH_OPENSSL
    hvd::communicator<hvd::encrypted<hvd::tcp>> encrypted_;
#endif
#if BENCH_WITH_GLOO
    hvd::communicator<hvd::gloo> gloo_;
    bench::gloo_peer plain_gloo_;
#endif
    std::vector<float> tensor_;
    int root_ = 0;  // the root of the last broadcast
    std::vector<bench::candidate> candidates_;
};

}  // namespace

int main(int argc, char** argv) {
    node_options o;
    CLI::App app(
        "Collectives over several nodes by hvd and by MPI; the column x peer is a time over hvd's.",
        "nodes");
    bench::add_options(app, o);
    app.remove_option(app.get_option("--threads"));
    bench::add_sizes(app, o);
    app.add_option("--node-size", o.node_size, "ranks taken as one node (0: as they are)")
        ->check(CLI::NonNegativeNumber);
    return bench::run_program(app, o, argc, argv, [&](auto& comm) {
        if constexpr (bench::on_mpi<std::remove_cvref_t<decltype(comm)>>) nodes(comm, o).run();
    });
}
