// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "options.hpp"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include <CLI/CLI.hpp>

#include "../hvdrun/manual.hpp"

namespace hvd_compute {
namespace {

int number_in(const char* variable, const char* value, int least) {
    int number = 0;
    const char* const end = value + std::strlen(value);
    const auto read = std::from_chars(value, end, number);
    if (read.ec != std::errc() || read.ptr != end || number < least)
        throw std::runtime_error(std::string(variable) + " is '" + value +
                                 "', and a number of at least " + std::to_string(least) +
                                 " was expected");
    return number;
}

// The place of this process, as its launcher tells it: hvdrun, Open MPI, MPICH, Intel MPI, Slurm.
void read_place(options& o) {
    constexpr const char* launchers[][2] = {{"HVD_RANK", "HVD_SIZE"},
                                            {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                            {"PMI_RANK", "PMI_SIZE"},
                                            {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
    for (const auto& [rank_name, size_name] : launchers) {
        const char* const rank = std::getenv(rank_name);
        const char* const size = std::getenv(size_name);
        if (rank == nullptr || size == nullptr) continue;
        o.size = number_in(size_name, size, 1);
        o.rank = number_in(rank_name, rank, 0);
        if (o.rank >= o.size)
            throw std::runtime_error(std::string(rank_name) + " is " + rank + ", and " + size_name +
                                     " is " + size + ": a rank below the size was expected");
        return;
    }
}

void check(const options& o) {
    if (o.size % o.dispatchers != 0)
        throw std::runtime_error(std::to_string(o.size) + " workers can't be shared by " +
                                 std::to_string(o.dispatchers) +
                                 " dispatchers: a multiple of the dispatchers was expected");
}

const hvdrun::described_program own_pages = {
    "hvd-compute",
    HVD_TOOLS_VERSION,
    "workers and dispatchers of a data service",
    "[options] CONFIG -- PROGRAM [ARGUMENT ...]",
    "that of the worker; 1 if the service fails; 2 for a wrong command line.",
    "hvdrun -np 4 hvd-compute compute.json -- ./worker",
    "docs/data_service.md"};

}  // namespace

options read_options(int argc, char** argv) {
    CLI::App app{
        "Starts the workers and dispatchers of a data service, as a rank of a job:\n"
        "  hvdrun -np 4 hvd-compute compute.json -- ./worker"};
    options o;
    std::string side = "compute";
    app.add_option("--dispatchers", o.dispatchers, "the dispatchers; the workers are a multiple")
        ->check(CLI::Range(1, 65536))
        ->capture_default_str();
    app.add_option("--dispatcher-side", side, "who serves them: the compute job or the trainers")
        ->check(CLI::IsMember({"compute", "training"}))
        ->capture_default_str();
    app.add_option("--timeout", o.timeout, "seconds in which others must be there")
        ->check(CLI::Range(0.001, 1e8))
        ->capture_default_str();
    app.add_flag("--progress", o.progress, "a line on standard error each second");
    app.add_option("--metrics", o.metrics,
                   "write the counts of each dispatcher to this file each second, for Prometheus");
    app.add_flag("!--no-shared-memory", o.shares_memory,
                 "batches go by the connection also to trainers of this host");
    app.add_flag("--encrypted", o.encrypts,
                 "TLS between trainers and workers, whose programs need OpenSSL for it");
    app.add_option("config", o.config, "the file that trainers and workers read")->required();
    app.add_option("program", o.program, "the worker's program and its arguments, behind --")
        ->required();
    if (argc == 3 && std::strcmp(argv[1], "--generate") == 0) {
        std::fputs(hvdrun::installed_file(app, own_pages, argv[2]).c_str(), stdout);
        std::exit(0);
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
        std::exit(app.exit(e) == 0 ? 0 : 2);
    }
    o.on_training_side = side == "training";
    o.config = std::filesystem::absolute(o.config).string();
    read_place(o);
    check(o);
    return o;
}

}  // namespace hvd_compute
