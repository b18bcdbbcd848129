// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Makes one trace of the timelines of all ranks: hvd-trace -o trace.json timeline.*.json
// Or says in which call ranks wait, and for whom: hvd-trace PID…

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "arguments.hpp"
#include "merge.hpp"
#include "records.hpp"

namespace {

using hvd_trace::arguments;

std::vector<std::string> merge_to(const std::string& output, const arguments& given) {
    std::ofstream out(output, std::ios::binary | std::ios::trunc);
    if (!out) throw std::runtime_error("hvd-trace: " + output + " can't be written");
    const auto remarks = hvd_trace::merge(given.files, out);
    if (!out.flush()) throw std::runtime_error("hvd-trace: " + output + " could not be written");
    return remarks;
}

// The output is written under another name first, so that a failure leaves no half of a trace.
std::vector<std::string> merge_to_file(const std::string& file, const arguments& given) {
    const std::string unfinished = file + ".unfinished";
    std::vector<std::string> remarks;
    try {
        remarks = merge_to(unfinished, given);
        if (std::rename(unfinished.c_str(), file.c_str()) != 0)
            throw std::runtime_error("hvd-trace: " + file + " can't be replaced");
    } catch (...) {
        std::remove(unfinished.c_str());
        throw;
    }
    return remarks;
}

// The file to replace, behind all links. Empty for a device or a pipe, as /dev/stdout may be.
std::string file_of(const std::string& output) {
    std::error_code unknown;
    const auto about = std::filesystem::status(output, unknown);
    if (!std::filesystem::exists(about)) return output;
    if (!std::filesystem::is_regular_file(about)) return {};
    return std::filesystem::canonical(output, unknown).string();
}

std::vector<std::string> merge_to_output(const arguments& given) {
    const std::string file = file_of(given.output);
    return file.empty() ? merge_to(given.output, given) : merge_to_file(file, given);
}

void flush_stdout() {
    if (!std::cout.flush()) throw std::runtime_error("hvd-trace: the output can't be written");
}

std::vector<std::string> merge_to_stdout(const arguments& given) {
    const auto remarks = hvd_trace::merge(given.files, std::cout);
    flush_stdout();
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
    std::vector<hvd_trace::no_record> others;  // a launcher has the program in its command line
    for (const std::string& file : given.files) try {
            processes.push_back(hvd_trace::read_records(file));
        } catch (const hvd_trace::no_record& why) {
            others.push_back(why);
        }
    if (processes.empty()) throw others.front();
    for (const hvd_trace::no_record& why : others)
        if (!given.quiet) std::cerr << why.what() << '\n';
    if (given.output.empty()) {
        hvd_trace::tell_waits(processes, std::cout);
        return flush_stdout();
    }
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
        const auto remarks = given.output.empty() ? merge_to_stdout(given) : merge_to_output(given);
        for (const std::string& r : remarks)
            if (!given.quiet) std::cerr << "hvd-trace: " << r << '\n';
    } catch (const std::exception& e) {
        std::cerr << e.what() << '\n';
        return 1;
    }
}
