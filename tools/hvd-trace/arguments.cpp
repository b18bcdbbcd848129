// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "arguments.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <CLI/CLI.hpp>

#include "../hvdrun/manual.hpp"

namespace hvd_trace {
namespace {

const hvdrun::described_program own_pages = {
    "hvd-trace",
    HVD_TOOLS_VERSION,
    "one trace of the timelines of all ranks, or who waits for whom",
    "[options] FILE|PID ...",
    "0 if the trace is written; 1 if an input cannot be read; 106 and other numbers above 100 for "
    "a wrong command line.",
    "hvd-trace -o trace.json timeline.*.json\nhvd-trace 4711 4712",
    "docs/observing.md"};

}  // namespace

arguments read_arguments(int argc, char** argv) {
    CLI::App app{
        "Makes one trace of the timelines of all ranks, for ui.perfetto.dev. Of processes, or of "
        "files that HVD_CALL_RECORD names, it says which rank waits in which call for whom."};
    arguments given;
    app.add_option("files", given.files, "the timelines, one of each rank; or process numbers")
        ->required();
    app.add_option("-o,--output", given.output, "the output; standard output if not given");
    app.add_flag("-q,--quiet", given.quiet, "no remarks on missing ranks and killed processes");
    if (argc == 3 && std::strcmp(argv[1], "--generate") == 0) {
        std::fputs(hvdrun::installed_file(app, own_pages, argv[2]).c_str(), stdout);
        std::exit(0);
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& end) {
        std::exit(app.exit(end));
    }
    return given;
}

}  // namespace hvd_trace
