// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <fmt/format.h>
#include <sys/utsname.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <hvd/hvd.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "affinity.hpp"
#include "busy_loops.hpp"
#include "formats.hpp"
#include "measure.hpp"

namespace bench {

/// Options of every benchmark.
struct options {
    int threads = 0;
    bool bind = false;
    bool funneled = false;
    int loops = 0;
    std::string file, table_file;
    bool like_osu = false;
    effort work{.seconds = 0.5};
    std::string command;
    hvd::communicator_options communicator;
};

inline void add_options(CLI::App& app, options& o) {
    app.option_defaults()->always_capture_default();
#if HVD_WITH_MPI
    app.add_option("--threads", o.threads, "ranks as threads of this process (0: MPI's world)")
        ->check(CLI::NonNegativeNumber);
    app.add_flag("--funneled", o.funneled,
                 "ask MPI for the level FUNNELED: calls are driven by each other, by no thread");
#else
    o.threads = 2;
    app.add_option("--threads", o.threads, "ranks, which are threads: this build has no MPI")
        ->check(CLI::PositiveNumber);
#endif
    app.add_flag("--bind", o.bind,
                 "keep each rank on one core (processes: or mpiexec --bind-to core)");
    app.add_option("--loops", o.loops, "endless loops that run beside the ranks")
        ->check(CLI::NonNegativeNumber);
    app.add_option("--seconds", o.work.seconds,
                   "time to measure each line of the table for, all candidates together")
        ->take_last()
        ->check(CLI::PositiveNumber);
    app.add_option("--rounds", o.work.min_rounds, "at least so many turns of each candidate")
        ->take_last()
        ->check(CLI::PositiveNumber);
    app.add_option("--json", o.file, "also write the figures to this file");
    app.add_option("--csv", o.table_file, "also write them to this file, a row for each line");
}

/// Options of a benchmark that sweeps over sizes, in bytes.
struct sweep_options : options {
    std::size_t min_bytes, max_bytes, factor;

    sweep_options(std::size_t least, std::size_t most, std::size_t times)
        : min_bytes(least), max_bytes(most), factor(times) {}
};

/// `least` is the smallest allowed size: that of one element.
inline void add_sizes(CLI::App& app, sweep_options& o, std::size_t least = sizeof(float)) {
    const auto size = CLI::Range(least, std::size_t(1) << 30);
    app.add_option("--min", o.min_bytes, "smallest size in bytes (with a unit: 64KiB)")
        ->take_last()
        ->transform(CLI::AsSizeValue(false))
        ->check(size);
    app.add_option("--max", o.max_bytes, "largest")
        ->take_last()
        ->transform(CLI::AsSizeValue(false))
        ->check(size);
    app.add_option("--factor", o.factor, "from one size to the next")
        ->take_last()
        ->check(CLI::Range(2, 1 << 20));
    app.add_flag("--osu", o.like_osu,
                 "print tables like those of the OSU micro-benchmarks, at the end");
}

inline std::string cpu_name() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);)
        if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
    return "unknown";
}

inline json machine() {
    utsname system{};
    uname(&system);
    json result{{"cpu", cpu_name()},
                {"cores", std::thread::hardware_concurrency()},
                {"system", fmt::format("{} {}", system.sysname, system.release)},
                {"compiler", __VERSION__}};
#if HVD_WITH_MPI
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(version, &length);
    const std::string text(version, std::size_t(length));
    result["mpi"] = text.substr(0, text.find_first_of(",\n"));
#endif
    return result;
}

inline std::string now_utc() {
    const std::time_t now = std::time(nullptr);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
    return text;
}

template <class Comm>
constexpr bool on_mpi = requires(const Comm& comm) { comm.native_handle(); };

/// Collects a benchmark's rows. Rank 0 keeps them, prints them at once and writes them at the end.
template <class Comm>
class report {
public:
    report(const Comm& comm, const char* benchmark, const options& o)
        : chief_(comm.rank() == 0), options_(o) {
        document_ = {{"benchmark", benchmark}, {"date", now_utc()},
                     {"command", o.command},   {"machine", machine()},
                     {"ranks", comm.size()},   {"backend", on_mpi<Comm> ? "mpi" : "threads"},
                     {"loops", o.loops},       {"rows", json::array()}};
        print("# {} on {} ranks ({}){}, {} cores, {}\n", benchmark, comm.size(),
              document_["backend"].template get<std::string>(),
              o.loops > 0
                  ? fmt::format(" beside {} endless loop{}", o.loops, o.loops > 1 ? "s" : "")
                  : "",
              std::thread::hardware_concurrency(), document_["date"].template get<std::string>());
    }

    template <class... A>
    void print(fmt::format_string<A...> text, A&&... values) const {
        if (!chief_ || options_.like_osu) return;
        fmt::print(text, std::forward<A>(values)...);
        std::fflush(stdout);
    }

    void add(json row) { document_["rows"].push_back(std::move(row)); }
    void set(const char* name, json value) { document_[name] = std::move(value); }

    void write() const {
        if (!chief_) return;
        if (options_.like_osu) fmt::print("{}", osu_tables(document_));
        put(options_.file, [this] { return document_.dump(1) + '\n'; });
        put(options_.table_file, [this] { return csv_of(document_["rows"]); });
    }

private:
    static void put(const std::string& file, const std::function<std::string()>& text) {
        if (file.empty()) return;
        std::ofstream out(file);
        out << text();
        if (!out.flush()) throw std::runtime_error("bench: can't write " + file);
    }

    bool chief_;
    const options& options_;
    json document_;
};

/// Runs `body(comm)` on the requested ranks and returns the status of the program.
template <class F>
int on_ranks(const options& o, [[maybe_unused]] int argc, [[maybe_unused]] char** argv, F&& body) {
    const auto one_rank = [&](auto& comm) {
        if (o.bind) bind_to_core(comm.rank());
        const busy_loops beside(comm.rank() == 0 ? o.loops : 0);
        body(comm);
    };
#if HVD_WITH_MPI
    const auto level = o.funneled ? hvd::thread_level::funneled : hvd::thread_level::multiple;
    hvd::mpi_environment environment(argc, argv, {.thread_level = level});
    if (o.threads == 0) {
        auto world = hvd::communicator<hvd::mpi>::world(o.communicator);
        one_rank(world);
        return 0;
    }
#endif
    hvd::run_threads(o.threads, one_rank, o.communicator);
    return 0;
}

/// Parses the command line and runs `body(comm)`, as the `main` of every benchmark does.
template <class F>
int run_program(CLI::App& app, options& o, int argc, char** argv, F&& body) {
    o.command = app.get_name();
    for (int i = 1; i < argc; ++i) o.command.append(" ").append(argv[i]);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& stop) {
        return app.exit(stop);
    }
    return on_ranks(o, argc, argv, body);
}

}  // namespace bench
