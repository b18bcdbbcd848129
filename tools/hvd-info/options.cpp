// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "options.hpp"

#include <cstdio>
#include <cstdlib>

#include <CLI/CLI.hpp>

#include "../hvdrun/manual.hpp"

namespace hvd_info {
namespace {

void describe(CLI::App& app, options& o, const std::vector<std::string>& checks,
              std::string& file) {
    app.description(
        "Prints facts of hvd, MPI, this host, its GPUs and its network, what is wrong, and what to "
        "do about it. Started on the ranks of a job, it also compares them. The exit code is 1 if "
        "something is wrong.");
    app.add_flag("--json", o.is_json, "print JSON");
    app.add_option("--only", o.only, "run only these checks, with commas between")
        ->delimiter(',')
        ->check(CLI::IsMember(checks));
    app.add_option("--sysroot", o.root, "read /proc and /sys below this folder, as lscpu does");
    app.add_option("--generate", file)->check(CLI::IsMember({"manual", "bash", "zsh"}))->group("");
}

const hvdrun::described_program own_pages = {
    "hvd-info",
    HVD_TOOLS_VERSION,
    "what hvd finds here, and what is wrong",
    "[options]",
    "0 if nothing is wrong; 1 if something is; 2 for a wrong command line.",
    "hvd-info\nhvd-info --json --only gpu,network\nhvdrun -np 4 -H node1:2,node2:2 hvd-info\n"
    "mpiexec -n 2 hvd-info",
    "docs/questions.md"};

}  // namespace

options read_options(int argc, char** argv, const std::vector<std::string>& checks) {
    CLI::App app("", "hvd-info");
    options o;
    std::string file;
    describe(app, o, checks, file);
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& end) {
        std::exit(app.exit(end));
    } catch (const CLI::ParseError& error) {
        std::fprintf(stderr, "hvd-info: %s\n", error.what());
        std::exit(2);
    }
    if (!file.empty()) {
        std::fputs(hvdrun::installed_file(app, own_pages, file).c_str(), stdout);
        std::exit(0);
    }
    return o;
}

}  // namespace hvd_info
