// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Makes one trace of the timelines of all ranks: hvd-trace -o trace.json timeline.*.json

#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <sstream>

#include <CLI/CLI.hpp>

#include "merge.hpp"

namespace {

struct arguments {
    std::vector<std::string> files;
    std::string output;
    bool quiet = false;
};

// The output is written under another name first, so that a failure leaves no half of a trace.
std::vector<std::string> merge_to_file(const arguments& given) {
    const std::string unfinished = given.output + ".unfinished";
    std::vector<std::string> remarks;
    try {
        std::ofstream out(unfinished, std::ios::binary | std::ios::trunc);
        if (!out) throw std::runtime_error("hvd-trace: " + unfinished + " can't be written");
        remarks = hvd_trace::merge(given.files, out);
        out.close();
        if (!out) throw std::runtime_error("hvd-trace: " + unfinished + " could not be written");
        if (std::rename(unfinished.c_str(), given.output.c_str()) != 0)
            throw std::runtime_error("hvd-trace: " + given.output + " can't be replaced");
    } catch (...) {
        std::remove(unfinished.c_str());
        throw;
    }
    return remarks;
}

std::vector<std::string> merge_to_stdout(const arguments& given) {
    const auto remarks = hvd_trace::merge(given.files, std::cout);
    if (!std::cout.flush()) throw std::runtime_error("hvd-trace: the output can't be written");
    return remarks;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app{"Makes one trace of the timelines of all ranks, for ui.perfetto.dev"};
    arguments given;
    app.add_option("files", given.files, "the timelines, one of each rank")->required();
    app.add_option("-o,--output", given.output, "the trace; standard output if not given");
    app.add_flag("-q,--quiet", given.quiet, "no remarks on missing ranks and killed processes");
    CLI11_PARSE(app, argc, argv);
    try {
        const auto remarks = given.output.empty() ? merge_to_stdout(given) : merge_to_file(given);
        for (const std::string& r : remarks)
            if (!given.quiet) std::cerr << "hvd-trace: " << r << '\n';
    } catch (const std::exception& e) {
        std::cerr << e.what() << '\n';
        return 1;
    }
}
