// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Measures the cost of a timeline: plain calls, and the gradients of a model through an engine,
// without an observer, with a timeline that does not record, and with one that does. All take
// turns.
#include <filesystem>
#include <memory>
#include <string>

#include <hvd/engine.hpp>
#include <hvd/timeline.hpp>

#include "support/gradients.hpp"
#include "support/pattern.hpp"
#include "support/program.hpp"

namespace {

struct timeline_options : bench::options {
    std::string set = "resnet50", folder;
    std::size_t tensors = 0;
    std::vector<std::size_t> sizes{4096, 65536, 1 << 20};
};

// Another communicator of the same ranks, whose calls are observed.
template <class Backend>
using observed_comm = hvd::communicator<hvd::observed<Backend, hvd::timeline>>;

#if HVD_WITH_MPI
observed_comm<hvd::mpi> observe(hvd::communicator<hvd::mpi>& comm) {
    return observed_comm<hvd::mpi>(comm.native_handle(), hvd::borrow);
}
#endif
observed_comm<hvd::threads> observe(hvd::communicator<hvd::threads>& comm) {
    static std::vector<std::unique_ptr<hvd::thread_group>> groups;  // each outlives its ranks
    if (comm.rank() == 0) groups.push_back(std::make_unique<hvd::thread_group>(comm.size()));
    comm.barrier();
    hvd::thread_group& group = *groups.back();
    comm.barrier();
    return group.communicator<hvd::observed<hvd::threads, hvd::timeline>>(comm.rank());
}

// The gradients of a model, submitted by name.
template <class Comm>
struct model {
    hvd::engine<typename Comm::backend_type> engine;
    bench::gradients gradients;
    std::vector<std::string> names;
    std::vector<hvd::request> requests;

    model(Comm& comm, const std::vector<std::size_t>& counts)
        : engine(comm), gradients(counts, std::pmr::get_default_resource()) {
        for (std::size_t i = 0; i < counts.size(); ++i)
            names.push_back("layer" + std::to_string(i) + "/kernel");
    }
    void step() {
        auto views = gradients.views();
        for (std::size_t i = 0; i < views.size(); ++i)
            requests.push_back(engine.allreduce(names[i], views[i], hvd::average));
        for (hvd::request& r : requests) r.wait();
        requests.clear();
    }
};

template <class Comm>
class timelines {
public:
    timelines(Comm& comm, const timeline_options& o)
        : comm_(comm), o_(o), out_(comm, "timeline", o), off_(observe(comm)), on_(observe(comm)) {
        file_ = (std::filesystem::path(o.folder) / "timeline.json").string();
    }

    void run() {
        out_.print("{:>22} {:>12} {:>12} {:>12} {:>10} {:>10} {:>9}\n", "job", "none (us)",
                   "idle (us)", "on (us)", "idle/none", "on/none", "dropped");
        for (const std::size_t bytes : o_.sizes) calls(bytes);
        steps();
        out_.write();
    }

private:
    using other = decltype(observe(std::declval<Comm&>()));

    void calls(std::size_t bytes) {
        struct job {
            Comm& comm;
            other &off, &on;
            std::vector<float> data;
        };
        const auto own =
            std::make_shared<job>(job{comm_, off_, on_, std::vector<float>(bytes / sizeof(float))});
        measure(
            fmt::format("allreduce of {} B", bytes), bytes,
            [own] { own->comm.allreduce(own->data, hvd::average); },
            [own] { own->off.allreduce(own->data, hvd::average); },
            [own] { own->on.allreduce(own->data, hvd::average); });
    }

    void steps() {
        const auto counts = bench::gradient_counts(o_.set, o_.tensors);
        const auto none = std::make_shared<model<Comm>>(comm_, counts);
        const auto off = std::make_shared<model<other>>(off_, counts);
        const auto on = std::make_shared<model<other>>(on_, counts);
        measure(
            o_.set + " by engine", bench::total(counts) * sizeof(float), [none] { none->step(); },
            [off] { off->step(); }, [on] { on->step(); });
    }

    void measure(const std::string& job, std::size_t bytes, std::function<void()> none,
                 std::function<void()> idle, std::function<void()> on) {
        hvd::start_timeline(on_, {.file = file_, .max_bytes = std::size_t(1) << 30});
        const std::vector<bench::candidate> candidates{
            {"none", std::move(none)}, {"idle", std::move(idle)}, {"on", std::move(on)}};
        const auto timings = bench::interleave(comm_, candidates, o_.work);
        const auto summary = hvd::stop_timeline(on_);
        const double base = timings[0].time;
        out_.print("{:>22} {:>12.2f} {:>12.2f} {:>12.2f} {:>10.3f} {:>10.3f} {:>9}\n", job,
                   base * 1e6, timings[1].time * 1e6, timings[2].time * 1e6, timings[1].time / base,
                   timings[2].time / base, summary.dropped);
        out_.add({{"job", job},
                  {"size", bytes},
                  {"time_none", base * 1e6},
                  {"time_idle", timings[1].time * 1e6},
                  {"time_on", timings[2].time * 1e6},
                  {"ratio_idle", timings[1].time / base},
                  {"ratio_on", timings[2].time / base},
                  {"dropped", summary.dropped},
                  {"file_bytes", summary.bytes},
                  {"rounds", timings[0].rounds}});
    }

    Comm& comm_;
    const timeline_options& o_;
    bench::report<Comm> out_;
    other off_, on_;
    std::string file_;
};

}  // namespace

int main(int argc, char** argv) {
    timeline_options o;
    o.folder = std::filesystem::temp_directory_path().string();
    CLI::App app("The cost of a timeline, of plain calls and of an engine's steps.", "timeline");
    bench::add_options(app, o);
    app.add_option("--set", o.set, "which gradients")->check(CLI::IsMember(bench::gradient_sets));
    app.add_option("--tensors", o.tensors, "only the first N of the set (0: all)");
    app.add_option("--sizes", o.sizes, "bytes of the plain calls")
        ->delimiter(',')
        ->transform(CLI::AsSizeValue(false));
    app.add_option("--folder", o.folder, "where the timelines are written");

    return bench::run_program(app, o, argc, argv, [&](auto& comm) { timelines(comm, o).run(); });
}
