// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Measures the average of a tensor in place by hvd and by its peers. All run in one process and
// take turns: raw MPI (Open MPI as it decides and with each of its algorithms forced), Boost.MPI,
// Gloo. Linked with MPICH it compares hvd and MPICH, since two MPIs can't share a process.
#include <optional>

#include "support/bandwidth.hpp"
#include "support/memory.hpp"
#include "support/mpi_peer.hpp"
#include "support/openmpi_algorithms.hpp"
#include "support/pattern.hpp"
#include "support/table.hpp"
#if BENCH_WITH_BOOST
#include <boost/mpi.hpp>
#endif
#if BENCH_WITH_GLOO
#include "support/gloo_peer.hpp"
#endif

namespace {

struct peer_options : bench::sweep_options {
    peer_options() : sweep_options(4, std::size_t(64) << 20, 4) {}
};

using communicator = hvd::communicator<hvd::mpi>;

class peers {
public:
    peers(communicator& comm, const peer_options& o, const std::vector<bench::memory_kind>& kinds)
        : comm_(comm),
          o_(o),
          kinds_(kinds),
          out_(comm, "peers", o),
          algorithms_(bench::forced_algorithms(MPI_COMM_WORLD)) {
#if BENCH_WITH_BOOST
        boost_.emplace(MPI_COMM_WORLD, boost::mpi::comm_duplicate);
#endif
#if BENCH_WITH_GLOO
        gloo_.emplace(comm);
#endif
        for (const auto& kind : kinds)
            tensors_.emplace_back(o.max_bytes / sizeof(float), 0.0f, kind.memory);
    }

    void run() {
        const double limit = bench::copy_limit(comm_, std::min(o_.max_bytes, std::size_t(64) << 20),
                                               std::min(1.0, o_.work.seconds));
        out_.set("copy_bandwidth", limit / 1e9);
        out_.print("{}", bench::heading());
        for (std::size_t bytes = o_.min_bytes; bytes <= o_.max_bytes; bytes *= o_.factor)
            run(bytes / sizeof(float), limit);
        out_.write();
    }

private:
    void run(std::size_t count, double limit) {
        candidates_.clear();
        for (std::size_t k = 0; k < kinds_.size(); ++k)
            add(
                "hvd " + kinds_[k].name, count,
                [this](float* x, std::size_t n) { comm_.allreduce(hvd::view(x, n), hvd::average); },
                k);
        add_mpi("mpi", count, MPI_COMM_WORLD);
        for (const auto& [name, handle] : algorithms_) add_mpi("mpi " + name, count, handle);
#if BENCH_WITH_BOOST
        add("boost", count, [this](float* x, std::size_t n) {
            boost::mpi::all_reduce(*boost_, boost::mpi::inplace(x), int(n), std::plus<float>());
            bench::scale(x, n, comm_.size());
        });
#endif
#if BENCH_WITH_GLOO
        add("gloo ring", count, [this](float* x, std::size_t n) { gloo_->average(x, n, true); });
        add("gloo bcube", count, [this](float* x, std::size_t n) { gloo_->average(x, n, false); });
#endif
        print(count, bench::interleave(comm_, candidates_, o_.work), limit);
    }

    void add_mpi(std::string name, std::size_t count, MPI_Comm handle) {
        const bench::mpi_peer<float, hvd::op::average> mpi{handle, comm_.size()};
        add(std::move(name), count,
            [mpi](float* x, std::size_t n) { mpi.allreduce(MPI_IN_PLACE, x, n); });
    }

    void add(std::string name, std::size_t count, std::function<void(float*, std::size_t)> average,
             std::size_t kind = 0) {
        float* const x = tensors_[kind].data();
        candidates_.push_back(
            bench::average_in_place(comm_, std::move(name), x, count, [=] { average(x, count); }));
    }

    // The ratio is each candidate's time over hvd's on plain memory.
    void print(std::size_t count, const std::vector<bench::timing>& timings, double limit) {
        std::size_t best = candidates_.size();
        for (std::size_t c = 0; c < candidates_.size(); ++c) {
            bench::line line{.collective = "all_reduce",
                             .path = candidates_[c].name,
                             .type = "float",
                             .op = "average",
                             .size = count * sizeof(float),
                             .count = count};
            line.in_place = timings[c];
            line.ratio_in_place = timings[c].time / timings.front().time;
            bench::add_line(out_, line, comm_.size(), limit);
            if (candidates_[c].name.starts_with("mpi") &&
                (best == candidates_.size() || timings[c].time < timings[best].time))
                best = c;
        }
        out_.print("# {} bytes: hvd is {:.2f} times as fast as the best of MPI ({})\n",
                   count * sizeof(float), timings[best].time / timings.front().time,
                   candidates_[best].name);
    }

    communicator& comm_;
    const peer_options& o_;
    const std::vector<bench::memory_kind>& kinds_;
    bench::report<communicator> out_;
    std::vector<std::pair<std::string, MPI_Comm>> algorithms_;
    std::vector<std::pmr::vector<float>> tensors_;
    std::vector<bench::candidate> candidates_;
#if BENCH_WITH_BOOST
    std::optional<boost::mpi::communicator> boost_;
#endif
#if BENCH_WITH_GLOO
    std::optional<bench::gloo_peer> gloo_;
#endif
};

}  // namespace

int main(int argc, char** argv) {
    peer_options o;
    CLI::App app(
        "The average of a tensor in place by hvd and by its peers; the column x peer is a peer's "
        "time over hvd's.",
        "peers");
    bench::add_options(app, o);
    app.remove_option(app.get_option("--threads"));
    bench::add_sizes(app, o);
    bench::allow_forced_algorithms();

    return bench::run_program(app, o, argc, argv, [&](auto& comm) {
        if constexpr (bench::on_mpi<std::remove_cvref_t<decltype(comm)>>)
            bench::with_memory(comm, o.max_bytes + 4096,
                               [&](const auto& kinds) { peers(comm, o, kinds).run(); });
    });
}
