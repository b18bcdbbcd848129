// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Measures the nanoseconds that a call takes over the raw MPI call, with one element, so that
// nothing hides them. It runs on one rank and on all. All candidates take turns.
#include "support/mpi_peer.hpp"
#include "support/pattern.hpp"
#include "support/program.hpp"

namespace {

using bench::candidate;

// The elements of one candidate.
struct elements {
    std::vector<float> values;
    int rank, ranks;

    candidate averaged(std::string name, std::function<void(std::vector<float>&)> call) {
        return {std::move(name), [this, call] { call(values); },
                [this] { bench::fill(values.data(), values.size(), rank, ranks); },
                [this] {
                    return bench::count_unequal(
                        values.data(), values.size(),
                        [this](std::size_t i) { return bench::expected_average(i, ranks); });
                }};
    }
    candidate sent(std::string name, std::function<void(std::vector<float>&)> call) {
        candidate c = averaged(std::move(name), std::move(call));
        c.wrong = [this] {
            return bench::count_unequal(values.data(), values.size(), [this](std::size_t i) {
                return bench::input(0, i, ranks);
            });
        };
        return c;
    }
};

template <class Comm>
std::vector<candidate> hvd_calls(const std::string& name, Comm& comm, elements& e) {
    std::vector<candidate> result;
    result.push_back(
        e.averaged("allreduce: " + name, [&comm](auto& v) { comm.allreduce(v, hvd::average); }));
    result.push_back(
        e.sent("broadcast: " + name, [&comm](auto& v) { comm.broadcast(v, hvd::root{0}); }));
    return result;
}

template <class Comm>
candidate plan_call(const std::string& name, Comm& comm, elements& e) {
    const auto plan = std::make_shared<hvd::plan<typename Comm::backend_type>>(
        comm.plan_allreduce(e.values, hvd::average));
    return e.averaged("allreduce: plan on " + name, [plan](auto&) { plan->run(); });
}

#if HVD_WITH_MPI
std::vector<candidate> raw_calls(MPI_Comm comm, elements& e) {
    const bench::mpi_peer<float, hvd::op::average> mpi{comm, e.ranks};
    std::vector<candidate> result;
    result.push_back(e.averaged(
        "allreduce: mpi", [mpi](auto& v) { mpi.allreduce(MPI_IN_PLACE, v.data(), v.size()); }));
    result.push_back(e.sent("broadcast: mpi", [mpi](auto& v) {
        bench::check(MPI_Bcast(v.data(), int(v.size()), mpi.type, 0, mpi.comm), "MPI_Bcast");
    }));
    return result;
}
#endif

template <class Out, class Comm>
void measure(Out& out, Comm& comm, const bench::effort& work,
             const std::vector<candidate>& candidates) {
    const auto timings = bench::interleave(comm, candidates, work);
    out.print("\n{:>10} {:>10} {:>10} {:>11} {:>7}  {}\n", "ns", "p50", "p99", "ns over mpi",
              "#wrong", "call");
    for (std::size_t c = 0; c < candidates.size(); ++c) {
        const std::string job = candidates[c].name.substr(0, candidates[c].name.find(':'));
        double raw = 0;
        for (std::size_t r = 0; r < candidates.size(); ++r)
            if (candidates[r].name == job + ": mpi") raw = timings[r].time;
        const bench::timing& t = timings[c];
        const std::string over = raw > 0 ? fmt::format("{:.0f}", (t.time - raw) * 1e9) : "-";
        out.print("{:>10.0f} {:>10.0f} {:>10.0f} {:>11} {:>7}  {}\n", t.time * 1e9, t.p50 * 1e9,
                  t.p99 * 1e9, over, t.wrong, candidates[c].name);
        bench::json row{{"call", candidates[c].name}, {"ranks", comm.size()}, {"ns", t.time * 1e9},
                        {"p50", t.p50 * 1e9},         {"p99", t.p99 * 1e9},   {"wrong", t.wrong}};
        if (raw > 0) row["over_raw"] = (t.time - raw) * 1e9;
        out.add(std::move(row));
    }
}

// Measures the calls on a communicator. With MPI it also measures those of the raw handle and of
// direct<mpi>.
template <class Out, class Comm>
void measure_on(Out& out, Comm& comm, const bench::effort& work, std::size_t count) {
    elements e{std::vector<float>(count), comm.rank(), comm.size()};
    std::vector<candidate> all;
    const auto add = [&all](std::vector<candidate> more) {
        for (auto& c : more) all.push_back(std::move(c));
    };
#if HVD_WITH_MPI
    if constexpr (bench::on_mpi<Comm>) {
        hvd::communicator<hvd::direct<hvd::mpi>> direct(comm.native_handle(), hvd::borrow);
        add(raw_calls(direct.native_handle(), e));
        add(hvd_calls("hvd::direct<hvd::mpi>", direct, e));
        add(hvd_calls("hvd::mpi", comm, e));
        all.push_back(plan_call("hvd::mpi", comm, e));
        measure(out, comm, work, all);
        return;
    }
#endif
    add(hvd_calls("hvd::threads", comm, e));
    all.push_back(plan_call("hvd::threads", comm, e));
    measure(out, comm, work, all);
}

}  // namespace

int main(int argc, char** argv) {
    bench::options o;
    std::size_t count = 1;
    CLI::App app("Nanoseconds a call takes over the raw MPI call, on one rank and on all.",
                 "overhead");
    bench::add_options(app, o);
    app.add_option("--count", count, "elements (float)")->check(CLI::PositiveNumber);

    return bench::run_program(app, o, argc, argv, [&](auto& comm) {
        bench::report out(comm, "overhead", o);
        out.print("# single calls include some 20 ns of the clock's own\n");
        if (auto alone = comm.subset({0})) measure_on(out, alone, o.work, count);
        comm.barrier();
        if (comm.size() > 1) measure_on(out, comm, o.work, count);
        out.write();
    });
}
