// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// All collectives over sizes, beside raw MPI if ranks are processes, with the columns of
// nccl-tests. All candidates of one size take turns. Several element types take turns at the same
// count.
#include <deque>
#include <map>
#include <string>

#include "support/bandwidth.hpp"
#include "support/jobs.hpp"
#include "support/memory.hpp"
#include "support/table.hpp"

namespace {

struct collective_options : bench::sweep_options {
    std::vector<std::string> collectives = bench::collective_names;
    std::vector<std::string> types{"float"};
    std::string op = "average";

    collective_options() : sweep_options(4, std::size_t(128) << 20, 2) {}
};

// The jobs of one size. Their candidates are measured together.
struct turn {
    std::deque<bench::line> lines;
    std::vector<bench::candidate> candidates;
    std::vector<std::pair<std::size_t, bool>> owners;  // line, in place

    void add(bench::line line, bench::job job) {
        lines.push_back(std::move(line));
        if (job.out_of_place.call) put(std::move(job.out_of_place), false);
        if (job.in_place.call) put(std::move(job.in_place), true);
    }

    void put(bench::candidate c, bool in_place) {
        candidates.push_back(std::move(c));
        owners.emplace_back(lines.size() - 1, in_place);
    }

    void keep(const std::vector<bench::timing>& timings) {
        for (std::size_t i = 0; i < timings.size(); ++i) {
            auto& [line, in_place] = owners[i];
            (in_place ? lines[line].in_place : lines[line].out_of_place) = timings[i];
        }
        for (bench::line& peer : lines)
            if (peer.path == "mpi")
                for (bench::line& line : lines) compare(line, peer);
    }

    static void compare(bench::line& line, const bench::line& peer) {
        if (line.type != peer.type || line.path == peer.path) return;
        if (line.in_place && peer.in_place)
            line.ratio_in_place = peer.in_place->time / line.in_place->time;
        if (line.out_of_place && peer.out_of_place)
            line.ratio_out_of_place = peer.out_of_place->time / line.out_of_place->time;
    }
};

// The tensors of one element type in one kind of memory.
struct tensors {
    std::pmr::vector<std::max_align_t> in, out;

    tensors(std::pmr::memory_resource* memory, std::size_t bytes)
        : in(words(bytes), memory), out(words(bytes), memory) {}
    static std::size_t words(std::size_t bytes) { return bytes / sizeof(std::max_align_t) + 1; }
};

template <class Comm>
class sweep {
public:
    sweep(Comm& comm, const collective_options& o, const std::vector<bench::memory_kind>& kinds)
        : comm_(comm), o_(o), kinds_(kinds), out_(comm, "collectives", o) {
        for (std::size_t i = 0; i < kinds.size() * o.types.size(); ++i)
            tensors_.emplace_back(kinds[i % kinds.size()].memory, bytes_of_type(i / kinds.size()));
    }

    void run() {
        limit_ = bench::copy_limit(comm_, std::min(o_.max_bytes, std::size_t(64) << 20),
                                   std::min(1.0, o_.work.seconds));
        out_.set("copy_bandwidth", limit_ / 1e9);
        out_.print("# all ranks copying at once read and write {:.2f} GB/s together: the limit\n",
                   limit_ / 1e9);
        for (const std::string& collective : o_.collectives) {
            const double time = line_time_.measure();
            out_.print("\n# {}", collective);
            if (time > 0)
                out_.print("; a cache line goes from rank 0 to rank 1 in {:.0f} ns: {}", time * 1e9,
                           bench::distance_of(time));
            out_.print("\n{}", bench::heading());
            for (std::size_t bytes = o_.min_bytes; bytes <= o_.max_bytes; bytes *= o_.factor)
                run(collective, bytes);
        }
        out_.write();
    }

private:
    static std::size_t size_of(const std::string& type) {
        std::size_t size = 0;
        bench::with_type(type, [&]<class T>(T) { size = sizeof(T); });
        return size;
    }

    // Sizes are those of the first type. The others have the same counts.
    std::size_t bytes_of_type(std::size_t type) const {
        return o_.max_bytes / size_of(o_.types.front()) * size_of(o_.types[type]);
    }

    void run(const std::string& collective, std::size_t bytes) {
        std::size_t count = bytes / size_of(o_.types.front());
        if (collective != "all_reduce" && collective != "broadcast" && collective != "reduce")
            count -= count % std::size_t(comm_.size());
        if (count == 0) return;
        turn now;
        const double line_time = line_time_.measure();
        for (std::size_t t = 0; t < o_.types.size(); ++t)
            bench::with_type(o_.types[t], [&]<class T>(T) { add<T>(now, collective, t, count); });
        now.keep(bench::interleave(comm_, now.candidates, o_.work));
        for (bench::line& line : now.lines) {
            line.line_time = line_time;
            bench::add_line(out_, line, comm_.size(), limit_);
        }
    }

    template <class T>
    void add(turn& now, const std::string& collective, std::size_t type, std::size_t count) {
        bench::with_op(o_.op, [&](auto op) {
            using Op = decltype(op);
            for (std::size_t k = 0; k < kinds_.size(); ++k)
                now.add(line<T>(collective, type, count, "hvd " + kinds_[k].name),
                        bench::job_of(collective, bench::hvd_calls<Comm, T, Op>{&comm_, op},
                                      place_of<T>(type, k, count), op));
#if HVD_WITH_MPI
            if constexpr (bench::on_mpi<Comm>)
                now.add(line<T>(collective, type, count, "mpi"),
                        bench::job_of(collective,
                                      bench::mpi_calls<T, Op>{{MPI_COMM_WORLD, comm_.size()}},
                                      place_of<T>(type, 0, count), op));
#endif
        });
    }

    template <class T>
    bench::place<T> place_of(std::size_t type, std::size_t kind, std::size_t count) {
        tensors& t = tensors_[type * kinds_.size() + kind];
        return {reinterpret_cast<T*>(t.in.data()), reinterpret_cast<T*>(t.out.data()), count,
                comm_.rank(), comm_.size()};
    }

    template <class T>
    bench::line line(const std::string& collective, std::size_t type, std::size_t count,
                     std::string path) const {
        return {.collective = collective,
                .path = std::move(path),
                .type = o_.types[type],
                .op = bench::reduces(collective) ? o_.op : "none",
                .size = count * sizeof(T),
                .count = count,
                .root = bench::has_root(collective) ? 0 : -1};
    }

    Comm& comm_;
    const collective_options& o_;
    const std::vector<bench::memory_kind>& kinds_;
    bench::line_time<Comm> line_time_{comm_};
    bench::report<Comm> out_;
    std::deque<tensors> tensors_;
    double limit_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
    collective_options o;
    CLI::App app("All collectives over sizes, with the columns of nccl-tests, beside raw MPI.",
                 "collectives");
    bench::add_options(app, o);
    app.add_option("--collectives", o.collectives, "which, in nccl-tests' spelling")
        ->delimiter(',')
        ->check(CLI::IsMember(bench::collective_names));
    app.add_option("--type", o.types,
                   "element types, which take turns at the same count: sizes are the first one's")
        ->delimiter(',')
        ->check(CLI::IsMember(bench::type_names));
    app.add_option("--op", o.op)->check(CLI::IsMember(bench::op_names));
    app.add_option("--calls", o.work.how,
                   "back_to_back; after_barrier; until_last: after a barrier, until the last rank "
                   "has its result (on one machine); rewritten: after_barrier, with inputs that "
                   "were just written")
        ->transform(CLI::CheckedTransformer(
            std::map<std::string, bench::calls>{{"back_to_back", bench::calls::back_to_back},
                                                {"after_barrier", bench::calls::after_barrier},
                                                {"until_last", bench::calls::until_last},
                                                {"rewritten", bench::calls::rewritten}}));
    bench::add_sizes(app, o, 2);

    return bench::run_program(app, o, argc, argv, [&](auto& comm) {
        const std::size_t room =
            2 * o.types.size() * 2 *
            (o.max_bytes + 4096);  // in and out; another type may be twice as wide
        bench::with_memory(comm, room, [&](const auto& kinds) { sweep(comm, o, kinds).run(); });
    });
}
