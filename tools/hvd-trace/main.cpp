// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Makes one trace of the timelines of all ranks: hvd-trace -o trace.json timeline.*.json
// Or says in which call ranks wait, and for whom: hvd-trace PID…

#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>

#include "arguments.hpp"
#include "merge.hpp"
#include "records.hpp"

namespace {

using hvd_trace::arguments;

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

// True if the arguments are processes and files of records, false if they are timelines.
bool are_records(const arguments& given) {
    std::size_t records = 0;
    for (const std::string& file : given.files)
        records += hvd_trace::is_process(file) || hvd_trace::is_record_file(file) ? 1 : 0;
    if (records > 0 && records < given.files.size())
        throw std::runtime_error("hvd-trace: timelines and records of calls are not merged");
    return records > 0;
}

// All are read before the first is told, so that they are of about one time.
void tell_waits(const arguments& given) {
    std::vector<hvd_trace::process_records> processes;
    for (const std::string& file : given.files) processes.push_back(hvd_trace::read_records(file));
    if (given.output.empty()) return hvd_trace::tell_waits(processes, std::cout);
    std::ofstream out(given.output);
    hvd_trace::tell_waits(processes, out);
    if (!out.flush()) throw std::runtime_error("hvd-trace: " + given.output + " can't be written");
}

}  // namespace

int main(int argc, char** argv) {
    const arguments given = hvd_trace::read_arguments(argc, argv);
    try {
        if (are_records(given)) {
            tell_waits(given);
            return 0;
        }
        const auto remarks = given.output.empty() ? merge_to_stdout(given) : merge_to_file(given);
        for (const std::string& r : remarks)
            if (!given.quiet) std::cerr << "hvd-trace: " << r << '\n';
    } catch (const std::exception& e) {
        std::cerr << e.what() << '\n';
        return 1;
    }
}
