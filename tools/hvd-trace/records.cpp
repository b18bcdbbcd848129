// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "records.hpp"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include <fcntl.h>
#include <unistd.h>

namespace hvd_trace {

namespace {

using hvd::detail::call_record;
using hvd::detail::record_file_head;
using hvd::detail::record_head;
using hvd::detail::record_memory;
using hvd::detail::tensor_record;

[[noreturn]] void refuse(const std::string& source, const std::string& why) {
    throw std::runtime_error("hvd-trace: " + source + ": " + why);
}

[[noreturn]] void refuse_without_record(const std::string& source, const std::string& why) {
    throw no_record("hvd-trace: " + source + ": " + why);
}

class file_descriptor {
public:
    explicit file_descriptor(const std::string& path)
        : number_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
    file_descriptor(file_descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    file_descriptor& operator=(file_descriptor&&) = delete;
    ~file_descriptor() {
        if (number_ >= 0) close(number_);
    }
    bool is_open() const { return number_ >= 0; }
    // False at the end of the file.
    bool read(void* to, std::size_t bytes, std::size_t at) const {
        return pread(number_, to, bytes, off_t(at)) == ssize_t(bytes);
    }

private:
    int number_;
};

bool has_head(const file_descriptor& file, record_file_head& head) {
    return file.read(&head, sizeof head, 0) &&
           std::memcmp(head.magic, record_file_head::magic_of_hvd, sizeof head.magic) == 0;
}

// A line of /proc/PID/status: the process number in each namespace that it is in.
bool has_number(const std::string& folder, std::int64_t number) {
    std::ifstream status(folder + "/status");
    for (std::string word; status >> word;)
        if (word == "NSpid:") {
            std::string numbers;
            std::getline(status, numbers);
            return (numbers + "\t").find("\t" + std::to_string(number) + "\t") != std::string::npos;
        }
    return true;  // an old kernel
}

bool is_stopped(const std::string& folder) {
    std::ifstream stat(folder + "/stat");
    std::string all;
    std::getline(stat, all);
    const std::size_t name = all.rfind(')');  // a name may have brackets
    return name != std::string::npos && name + 2 < all.size() &&
           (all[name + 2] == 'T' || all[name + 2] == 't');
}

// The file of records among the open files of a process. One of a parent does not count.
file_descriptor records_of(const std::string& source, const std::string& folder) {
    std::error_code failure;
    std::filesystem::directory_iterator files(folder + "/fd", failure);
    if (failure) refuse(source, "its open files can't be read: " + failure.message());
    for (const auto& entry : files) {
        const auto target = std::filesystem::read_symlink(entry.path(), failure);
        if (failure || target.string().find("memfd:hvd-calls") == std::string::npos) continue;
        file_descriptor file(entry.path());
        record_file_head head{};
        if (file.is_open() && has_head(file, head) && has_number(folder, head.process)) return file;
    }
    refuse_without_record(source, "it has no record of calls of hvd");
}

// A kind is an index of a table.
void make_safe(hvd::detail::collective& kind) {
    if (std::size_t(kind) >= std::size(hvd::detail::collective_table))
        kind = hvd::detail::collective::barrier;
}
void make_safe(call_record& r) {
    r.head.label[sizeof r.head.label - 1] = 0;
    for (call_record::name& n : r.names) n.text[sizeof n.text - 1] = 0;
    for (call_record::entry& e : r.entries) make_safe(e.kind);
    if (r.rank_count < 0 || r.rank_count > call_record::most_ranks) r.rank_count = 0;
}
void make_safe(tensor_record& r) {
    r.head.label[sizeof r.head.label - 1] = 0;
    for (tensor_record::entry& e : r.entries) {
        e.name[sizeof e.name - 1] = 0;
        make_safe(e.kind);
    }
}
// A file may come from anybody.
void check(const std::string& source, const record_head& head) {
    constexpr int most_ranks = 1 << 20;
    if (head.size < 1 || head.size > most_ranks || head.rank < 0 || head.rank >= head.size)
        refuse(source, "it has a record of rank " + std::to_string(head.rank) + " of " +
                           std::to_string(head.size));
}

process_records read_from(const std::string& source, const file_descriptor& file) {
    record_file_head head{};
    if (!has_head(file, head)) refuse(source, "it is no record of calls of hvd");
    if (head.version != record_file_head::present_version || head.page_bytes != record_memory::page)
        refuse(source, "it has version " + std::to_string(head.version) +
                           "; this hvd-trace reads " +
                           std::to_string(record_file_head::present_version));
    process_records result;
    result.source = source;
    result.time = head.written != 0 ? head.written : hvd::detail::now();
    record_head record{};
    for (std::size_t page = 1; file.read(&record, sizeof record, page * record_memory::page);) {
        const std::size_t at = page * record_memory::page;
        if (record.type == record_head::calls) {
            check(source, record);
            call_record& r = result.calls.emplace_back();
            if (!file.read(&r, sizeof r, at)) refuse(source, "it is cut off");
            make_safe(r);
        } else if (record.type == record_head::tensors) {
            check(source, record);
            auto r = std::make_unique<tensor_record>();
            if (!file.read(r.get(), sizeof *r, at)) refuse(source, "it is cut off");
            make_safe(*r);
            result.tensors.push_back(std::move(r));
        }
        page += record.type != record_head::none && record.pages > 1 ? record.pages : 1;
    }
    return result;
}

}  // namespace

bool is_process(const std::string& argument) {
    return !argument.empty() && argument.find_first_not_of("0123456789") == std::string::npos &&
           !std::filesystem::exists(argument);
}

bool is_record_file(const std::string& argument) {
    record_file_head head{};
    const file_descriptor file(argument);
    return file.is_open() && has_head(file, head);
}

process_records read_records(const std::string& process_or_file) {
    if (!is_process(process_or_file))
        return read_from(process_or_file, file_descriptor(process_or_file));
    const std::string folder = "/proc/" + process_or_file, source = "process " + process_or_file;
    if (!std::filesystem::exists(folder)) refuse_without_record(source, "there is none");
    process_records result = read_from(source, records_of(source, folder));
    result.is_stopped = is_stopped(folder);
    return result;
}

}  // namespace hvd_trace
