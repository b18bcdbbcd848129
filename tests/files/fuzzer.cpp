// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include <hvd/checkpoint.hpp>
#include <hvd/data_formats.hpp>
#include <hvd/data_service.hpp>
#include <hvd/elastic.hpp>
#include <hvd/interop/autotune_file.hpp>
#include <hvd/interop/options_file.hpp>
#include <hvd/train.hpp>

#include "../../tools/hvd-trace/merge.hpp"
#include "../../tools/hvd-trace/records.hpp"
#include "../../tools/hvdrun/allocation.hpp"
#include "../../tools/hvdrun/failure.hpp"
#include "../../tools/hvdrun/frames.hpp"
#include "../../tools/hvdrun/hosts.hpp"
#include "../../tools/hvdrun/lines.hpp"

// All that reads a file which others may have written, played by libFuzzer: a file is read whole,
// or refused by an error of hvd.

namespace {

using namespace hvd::detail;

void require(bool holds) {
    if (!holds) std::abort();
}

// Gone when the program ends well.
const std::string& path() {
    static const std::string made = [] {
        static std::string name =
            (std::filesystem::temp_directory_path() / ("fuzzed." + std::to_string(getpid())))
                .string();
        std::atexit([] { unlink(name.c_str()); });
        return name;
    }();
    return made;
}

void write(const std::string& bytes) {
    std::ofstream file(path(), std::ios::binary | std::ios::trunc);
    file << bytes;
}

// Some of the words that a format knows, among others.
std::string words(FuzzedDataProvider& from, std::initializer_list<const char*> known) {
    std::string all;
    while (from.remaining_bytes() > 0) {
        const auto n = from.ConsumeIntegralInRange<std::size_t>(0, known.size());
        if (n < known.size()) all += known.begin()[n];
        else all += from.ConsumeRandomLengthString(12);
    }
    return all;
}

void read_safetensors(FuzzedDataProvider& from) {
    const bool is_right = from.ConsumeBool();
    const auto wrong = from.ConsumeIntegral<std::uint64_t>();
    const std::string data(from.ConsumeIntegralInRange<std::size_t>(0, 64), 'x');
    const std::string header =
        words(from, {"{", "}", "[", "]", ",", ":", "\"", "\"a\"", "\"dtype\":\"F32\"", "\"BOOL\"",
                     "\"shape\":[2,3]", "\"data_offsets\":[0,24]", "\"__metadata__\":", "0", "-1",
                     "1e9", "18446744073709551615", "\"F8_E4M3\"",
                     R"("w":{"dtype":"F64","shape":[1],"data_offsets":[0,8]})"});
    const std::uint64_t length = is_right ? header.size() : wrong;
    write(std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data);
    try {
        const hvd::safetensors_file file(path());
        for (const auto& [name, t] : file.tensors()) {
            require(t.first + t.bytes <= 8 + header.size() + data.size());
            std::vector<double> into(t.bytes / sizeof(double));
            if (t.shape.size() == 1 && t.shape[0] == into.size())
                file.read(hvd::named(name.c_str(), into));
        }
    } catch (const hvd::error&) {
    }
}

// A step takes the state as it was read.
template <class O>
void read_optimizer(kept_reader& file) {
    O optimizer;
    read_kept_object(file, optimizer);
    std::vector<float> values(8, 1), slopes(8, 1);
    const hvd::tensor_view<float> value = hvd::view(values.data(), 8),
                                  slope = hvd::view(slopes.data(), 8);
    try {
        optimizer.step({&value, 1}, {&slope, 1});
    } catch (const hvd::usage_error&) {
    }
}

template <class Object>
void read_object(kept_reader& file) {
    Object object;
    read_kept_object(file, object);
}

// An object of each kind of which a state is made, with some of the numbers that a file may have.
hvd::optimizers::sgd<float> some_optimizer(FuzzedDataProvider& from) {
    hvd::optimizers::sgd<float> made{.rate = 1, .momentum = 1};
    made.velocity.resize(from.ConsumeIntegralInRange<std::size_t>(0, 2));
    for (auto& slot : made.velocity) slot.resize(from.ConsumeIntegralInRange<std::size_t>(0, 9));
    return made;
}
void write_object(FuzzedDataProvider& from, kept_writer& to, int kind) {
    using grouped = hvd::optimizers::grouped<hvd::optimizers::sgd<float>>;
    switch (kind) {
        case 0:
            return write_kept_object(to, std::vector<float>(from.ConsumeIntegral<std::uint8_t>()));
        case 1: return write_kept_object(to, from.ConsumeRandomLengthString(30));
        case 2: return write_kept_object(to, std::vector<std::vector<double>>(3));
        case 3: return write_kept_object(to, some_optimizer(from));
        default: {
            grouped made{some_optimizer(from)};
            made.add_group(some_optimizer(from), {from.ConsumeIntegral<std::uint8_t>()});
            return write_kept_object(to, made);
        }
    }
}

// A whole file of other objects, or one of which something was changed.
void read_kept_state(FuzzedDataProvider& from) {
    const bool is_sealed = from.ConsumeBool();
    const kept_key key = is_sealed ? kept_key(shared_secret{}) : kept_key();
    const int kind = from.ConsumeIntegralInRange(0, 4);
    {
        kept_writer to(path(), from.ConsumeIntegral<std::int64_t>(), key);
        while (from.ConsumeBool() && from.remaining_bytes() > 0) {
            switch (from.ConsumeIntegralInRange(0, 4)) {
                case 0: write_object(from, to, from.ConsumeIntegralInRange(0, 4)); break;
                case 1: to.put_number(from.ConsumeIntegral<std::uint64_t>()); break;
                case 2: to.put_number(std::uint64_t(from.ConsumeIntegralInRange(0, 40))); break;
                default: write_object(from, to, kind);
            }
        }
        to.commit();
    }
    if (from.ConsumeBool()) {
        std::ifstream file(path(), std::ios::binary);
        std::string bytes{std::istreambuf_iterator<char>(file), {}};
        bytes[from.ConsumeIntegralInRange<std::size_t>(0, bytes.size() - 1)] =
            from.ConsumeIntegral<char>();
        bytes.resize(from.ConsumeIntegralInRange<std::size_t>(0, bytes.size()));
        write(bytes);
    }
    using optimizer = hvd::optimizers::sgd<float>;
    static constexpr void (*reads[])(kept_reader&) = {
        read_object<std::vector<float>>, read_object<std::string>,
        read_object<std::vector<std::vector<double>>>, read_optimizer<optimizer>,
        read_optimizer<hvd::optimizers::grouped<optimizer>>};
    try {
        kept_reader file(path());
        if (from.ConsumeBool()) file.require_checksum(from.ConsumeBool() ? key : kept_key());
        reads[kind](file);
    } catch (const hvd::checkpoint_error&) {
    } catch (const hvd::usage_error&) {  // a serializer's
    }
}

void read_options(FuzzedDataProvider& from) {
    write(words(from, {"\n",
                       "\n  ",
                       ": ",
                       "- ",
                       "{",
                       "}",
                       "[",
                       "]",
                       ",",
                       "&a ",
                       "*a",
                       "--- ",
                       "# ",
                       "tuning",
                       "chunk_bytes",
                       "4KiB",
                       "elastic.min_size",
                       "tcp:",
                       "1e99",
                       "-1"}));
    try {
        const hvd::configuration made = hvd::read_configuration(path());
        static_cast<void>(made.apply<hvd::communicator_options>());
        static_cast<void>(made.apply<hvd::engine_options>());
        static_cast<void>(made.apply<hvd::elastic::bounds>());
    } catch (const hvd::error&) {
    }
}

// A value that was read is written so that it is read again, to the same.
template <class Options>
void read_setting_of(FuzzedDataProvider& from) {
    const auto& table = settings_of<Options>::table;
    const setting& s = table[from.ConsumeIntegralInRange<std::size_t>(0, std::size(table) - 1)];
    const std::string text =
        words(from, {"1", "4", "KiB", "M", "ms", "min", "forever", ",", "=", "chunk_bytes", "true",
                     "-", "9223372036854775807", "0", "us", "GiB"});
    Options read, again;
    if (!read_setting(s, text, &read)) return require(!complaint(s, text).empty());
    const std::string value = value_text(s, &read);
    if (s.is_hidden || value == s.automatic) return;
    require(read_setting(s, value, &again) && value_text(s, &again) == value);
}
void read_value(FuzzedDataProvider& from) {
    switch (from.ConsumeIntegralInRange(0, 4)) {
        case 0: return read_setting_of<hvd::communicator_options>(from);
        case 1: return read_setting_of<hvd::engine_options>(from);
        case 2: return read_setting_of<hvd::engine_tuning>(from);
        case 3: return read_setting_of<hvd::tcp_options>(from);
        default: return read_setting_of<hvd::elastic::bounds>(from);
    }
}

// The results of earlier searches. Those that were read can be written and read again.
void read_autotune(FuzzedDataProvider& from) {
    static const char* const right[] = {"\"processor\":\"p\"",  "\"ranks\":2",
                                        "\"ranks_per_node\":2", "\"backend\":\"b\"",
                                        "\"engine\":true",      "\"tensors\":\"ff\"",
                                        "\"seconds\":1",        "\"seconds_before\":1e-3",
                                        "\"steps\":3",          "\"thresholds\":{}"};
    std::string all = "results: [{";
    for (const char* member : right)
        if (from.ConsumeIntegral<std::uint8_t>() != 0) all += std::string(member) + ",";
    all += words(from, {"{", "}", "[", "]", ",", ": ", "\"", "1e400", "-1", "nan", "0x10", "\n",
                        "thresholds", "chunk_bytes", "4KiB", "ranks", "&a ", "*a", "}, {"});
    write(all + "}]");
    try {
        hvd::autotune_file file(path());
        for (const auto& e : file.entries())
            require(e.key.ranks >= 1 && e.result.seconds >= 0 && e.result.steps >= 0);
        file.write();
        require(hvd::autotune_file(path()).entries().size() == file.entries().size());
    } catch (const hvd::error&) {
    }
}

// Places and secrets as variables, options and files tell them.
void read_place(FuzzedDataProvider& from) {
    const std::string written =
        words(from, {"node1", ":", "7000", "65536", "[", "]", "::1", ",", "%eth0", "127.0.0.1", "-",
                     "fe80::", "0123456789abcdef0123456789abcdef", "\n", "\r"});
    try {
        const host_and_port place = read_host_and_port(written, "a variable");
        require(!place.host.empty() && place.port > 0);
    } catch (const hvd::error&) {
    }
    require(first_of_node_list(written).size() <= written.size());
    static_cast<void>(is_in_list(written, "node1"));
    write(written);
    ::chmod(path().c_str(), 0600);
    try {
        const shared_secret read = secret_from_file(path().c_str());
        require(secret_from_hex(hex_of(read), "it") == read);
    } catch (const hvd::error&) {
    }
}

void read_hosts(FuzzedDataProvider& from) {
    const int form = from.ConsumeIntegralInRange(0, 2);
    const std::string text = words(from, {"node1", "node2", ":", " slots=", "max_slots=", "65536",
                                          "2", "\n", "#", ",", "[::1]", " ", "\t", "=", "-"});
    try {
        if (form == 1) write(text);
        const hvdrun::host_list all = form == 0   ? hvdrun::parse_hosts(text)
                                      : form == 1 ? hvdrun::read_hostfile(path())
                                                  : hvdrun::read_discovered(text, 3);
        for (const hvdrun::host_slots& one : all) require(one.slots > 0 && !one.host.empty());
        require(hvdrun::number_of_slots(all) >= int(all.size()));
    } catch (const hvdrun::failure&) {
    }
}

// The hosts of a job as batch systems tell them, in a file or in a variable.
void read_allocation(FuzzedDataProvider& from) {
    static constexpr const char* variables[] = {"LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS",
                                                "PBS_NODEFILE", "PE_HOSTFILE",
                                                "SLURM_STEP_NUM_TASKS"};
    const int which = from.ConsumeIntegralInRange(0, 4);
    const std::string text = words(from, {"node1", "node2", " ", "65536", "2", "0", "-1", "\n", "#",
                                          ".", "all.q@node1", "UNDEFINED", "\t", "user@", "[::1]"});
    const bool is_text = which == 1 || which == 4;
    if (!is_text) write(text);
    for (const char* other : variables) unsetenv(other);
    setenv(variables[which], is_text ? text.c_str() : path().c_str(), 1);
    try {
        for (const hvdrun::host_slots& one : hvdrun::allocated_hosts())
            require(one.slots > 0 && hvdrun::is_host(one.host));
    } catch (const hvdrun::failure&) {
    }
}

void read_trace(FuzzedDataProvider& from) {
    static constexpr const char* offsets[] = {"0", "1", "-9223372036854775808"};
    std::string text = from.ConsumeBool()
                           ? R"([
{"name":"hvd_timeline","ph":"M","pid":0,"args":{"version":1,"rank":0,"size":2,"clock_offset_ns":)" +
                                 std::string(offsets[from.ConsumeIntegralInRange(0, 2)]) + "}},\n"
                           : "";
    if (from.ConsumeIntegral<std::uint8_t>() == 255)  // lists in lists
        text += R"({"ph":"X","pid":0,"args":)" + std::string(100'000, '[') +
                std::string(100'000, ']') + "},\n";
    text += words(from, {"[",
                         "]",
                         "{",
                         "}",
                         ",",
                         "\n",
                         ":",
                         "\"",
                         "\"args\":",
                         "\"rank\":",
                         "\"size\":",
                         "\"dropped\":",
                         "\"version\":",
                         "\"clock_offset_ns\":",
                         "\"name\":",
                         "\"hvd_timeline\"",
                         "\"hvd_timeline_end\"",
                         "\"ph\":\"X\"",
                         "\"pid\":",
                         "\"ts\":",
                         "{\"ph\":\"X\",\"pid\":0,\"ts\":",
                         "-1",
                         "1e300",
                         "1e300},\n",
                         "null",
                         "99999999999999999999"});
    write(text);
    try {
        std::ostringstream out;
        hvd_trace::merge({path()}, out);
    } catch (const std::runtime_error&) {
    }
}

void read_record(FuzzedDataProvider& from) {
    record_file_head head{{}, record_file_head::present_version, record_memory::page, 1, 1};
    std::memcpy(head.magic, record_file_head::magic_of_hvd, sizeof head.magic);
    head.written = from.ConsumeIntegral<std::int64_t>();
    std::string file(2 * record_memory::page + (from.ConsumeBool() ? sizeof(tensor_record) : 0), 0);
    std::memcpy(file.data(), &head, sizeof head);
    for (std::size_t page = 1; page < 3; ++page) {
        if (page * record_memory::page + sizeof(record_head) > file.size()) break;
        record_head record{};
        record.type = from.ConsumeIntegralInRange<std::uint32_t>(0, 3);
        record.pages = from.ConsumeIntegralInRange<std::uint32_t>(0, 2);
        record.rank = from.ConsumeIntegralInRange<int>(-1, 3);
        record.size = from.ConsumeIntegralInRange<int>(-1, 4);
        const std::string rest = from.ConsumeBytesAsString(
            from.ConsumeIntegralInRange<std::size_t>(0, sizeof(call_record)));
        char* const at = file.data() + page * record_memory::page;
        std::memcpy(at, &record, sizeof record);
        std::memcpy(
            at + sizeof record, rest.data(),
            std::min(rest.size(), file.size() - std::size_t(at - file.data()) - sizeof record));
    }
    write(file);
    try {
        std::ostringstream out;
        std::vector<hvd_trace::process_records> all;
        all.push_back(hvd_trace::read_records(path()));
        hvd_trace::tell_waits(all, out);
    } catch (const std::runtime_error&) {
    }
}

// The events of a connection, and the bytes of each rank, as text.
std::string told_by(const std::vector<std::string>& pieces, bool& is_sound) {
    hvdrun::frame_reader reader("KEY");
    std::string events, last;
    is_sound = true;
    for (const std::string& piece : pieces)
        is_sound = is_sound && reader.add(piece, [&](const hvdrun::frame& f) {
            using kind = hvdrun::frame::kind;
            const std::string who =
                "\n" + std::to_string(int(f.what)) + " " + std::to_string(f.rank) + " ";
            const bool has_bytes = f.what <= kind::errors;
            if (!has_bytes || who != last) events += who + std::to_string(f.value) + " ";
            events += f.bytes;
            last = has_bytes ? who : "";
        });
    return events;
}

// A connection to a host tells the same, however its bytes come.
void read_frames(FuzzedDataProvider& from) {
    const std::size_t cut = from.ConsumeIntegralInRange<std::size_t>(1, 9);
    const std::string bytes = words(from, {"KEY", "KE", "o 7", "e 1", ".", "s 7 4711", "x 7 0",
                                           "g 7", "f 7 1", "a", "\n", " ", "-1", "99999999999"});
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < bytes.size(); at += cut) pieces.push_back(bytes.substr(at, cut));
    bool whole_is_sound = true, pieces_are_sound = true;
    const std::string whole = told_by({bytes}, whole_is_sound);
    const std::string cut_up = told_by(pieces, pieces_are_sound);
    require(whole_is_sound == pieces_are_sound);
    require(whole == cut_up);
}

// The lines of a rank have all of its bytes, in order, however they come.
void split_lines(FuzzedDataProvider& from) {
    const std::string bytes =
        words(from, {"\r", "\n", "\r\n", "\xc3", "\xa4", "\xf0\x9f", "\x98\x80", "a"});
    hvdrun::line_splitter splits;
    std::string all;
    const auto take = [&](const hvdrun::line_part& part) {
        require(!part.bytes.empty());
        all += part.bytes;
    };
    for (std::size_t at = 0, n = 0; at < bytes.size(); at += n) {
        n = 1 + (at * 7 + bytes.size()) % 5;
        splits.add(std::string_view(bytes).substr(at, n), take);
        if (n == 3) splits.show_part(take);
    }
    splits.finish(take);
    require(all == bytes);
}

// The lines of a text file, with the last one's line feed or without.
void read_lines(FuzzedDataProvider& from) {
    const std::string bytes = words(from, {"\n", "\n\n", "a", "\r\n"});
    write(bytes);
    const hvd::data::text_lines file(path());
    std::string all;
    for (std::size_t i = 0; i < file.size(); ++i) all += file.read(i) + "\n";
    require(all == bytes || all == bytes + "\n");
}

// Reads all samples that the file is said to have, as long as there are few.
template <class Source>
void read_all(const Source& source) {
    for (std::size_t i = 0; i < source.size() && i < 1000; ++i) static_cast<void>(source.read(i));
}

template <class T>
void read_idx_of(std::string header, const std::string& elements) {
    write(header + elements);
    try {
        const hvd::data::idx_file<T> file(path());
        for (const std::size_t extent : file.shape()) require(extent <= 0xffffffff);
        read_all(file);
    } catch (const hvd::data::file_error&) {
    }
}

void read_idx(FuzzedDataProvider& from) {
    std::string header("\0\0", 2);
    const bool is_byte = from.ConsumeBool();
    header += is_byte ? '\x08' : '\x0e';
    const auto dimensions = from.ConsumeIntegral<std::uint8_t>();
    header += char(dimensions);
    for (int d = 0; d < dimensions && from.remaining_bytes() > 0; ++d)
        if (from.ConsumeBool()) header += std::string("\0\0\0", 3) + from.ConsumeIntegral<char>();
        else header += from.ConsumeBytesAsString(4);
    const std::string elements = from.ConsumeRemainingBytesAsString();
    if (is_byte) read_idx_of<std::uint8_t>(header, elements);
    else read_idx_of<double>(header, elements);
}

void read_tokens(FuzzedDataProvider& from) {
    std::uint32_t header[256] = {20240520, 1, from.ConsumeIntegral<std::uint8_t>()};
    if (from.ConsumeBool())
        header[from.ConsumeIntegralInRange(0, 2)] = from.ConsumeIntegral<std::uint32_t>();
    const hvd::data::token_options options{.length = from.ConsumeIntegral<std::uint8_t>(),
                                           .stride = from.ConsumeIntegral<std::uint8_t>(),
                                           .has_header = from.ConsumeBool()};
    write(std::string(reinterpret_cast<const char*>(header), sizeof header) +
          from.ConsumeRemainingBytesAsString());
    try {
        const hvd::data::token_file<std::uint16_t> file(path(), options);
        for (std::size_t i = 0; i < file.size() && i < 1000; ++i)
            require(file.read(i).size() == options.length + 1);
    } catch (const hvd::error&) {
    }
}

// Headers whose checksum is right, so that the rest of them is looked at.
void read_tar(FuzzedDataProvider& from) {
    std::string archive;
    while (from.remaining_bytes() > 0) {
        std::string header(512, '\0');
        const auto put = [&](std::size_t at, const std::string& bytes) {
            header.replace(at, bytes.size(), bytes);
        };
        put(0, from.ConsumeRandomLengthString(100));
        put(124, from.ConsumeBool() ? "00000000012" : from.ConsumeRandomLengthString(12));
        put(156, std::string(1, "0LxgS57K1"[from.ConsumeIntegralInRange(0, 8)]));
        if (from.ConsumeBool()) put(257, "ustar");
        if (from.ConsumeBool()) put(345, from.ConsumeRandomLengthString(155));
        put(148, "        ");
        unsigned sum = 0;
        for (const char byte : header) sum += static_cast<unsigned char>(byte);
        char digits[8];
        std::snprintf(digits, sizeof digits, "%06o", sum);
        put(148, digits);
        static constexpr const char* records[] = {"10 path=a\n", "10 size=1\n", "=", "\n", "9 "};
        std::string content;
        for (int n = from.ConsumeIntegralInRange(0, 4); n > 0; --n)
            content += from.ConsumeBool() ? records[from.ConsumeIntegralInRange(0, 4)]
                                          : from.ConsumeRandomLengthString(600);
        if (from.ConsumeBool()) content.resize((content.size() + 511) / 512 * 512);
        archive += header + content;
    }
    write(archive);
    try {
        const hvd::data::tar_samples file(path());
        for (std::size_t i = 0; i < file.size(); ++i) {
            const hvd::data::tar_sample sample = file.read(i);
            require(!sample.key.empty() && !sample.files.empty());
            for (const auto& [extension, bytes] : sample.files)
                require(bytes.size() <= archive.size());
        }
    } catch (const hvd::data::file_error&) {
    }
}

// An index beside an archive, whose head is right, so that the rest of it is looked at.
void read_tar_index(FuzzedDataProvider& from) {
    constexpr std::uint64_t archive_bytes = 4096;
    write(std::string(archive_bytes, '\0'));
    const auto list = [&](auto make) {
        std::vector<decltype(make())> all(from.ConsumeIntegralInRange<std::size_t>(0, 4));
        for (auto& each : all) each = make();
        return all;
    };
    const auto number = [&] {
        return from.ConsumeBool() ? from.ConsumeIntegralInRange<std::uint64_t>(0, 4)
                                  : from.ConsumeIntegral<std::uint64_t>();
    };
    const auto word = [&] { return from.ConsumeRandomLengthString(9); };
    std::vector<std::byte> rest;
    for (int i = 0; i < 2; ++i) hvd::serializer<std::vector<std::string>>::write(rest, list(word));
    for (int i = 0; i < 3; ++i)
        hvd::serializer<std::vector<std::uint64_t>>::write(rest, list(number));
    if (from.ConsumeBool()) rest.resize(from.ConsumeIntegralInRange<std::size_t>(0, rest.size()));
    const std::string_view text(reinterpret_cast<const char*>(rest.data()), rest.size());
    std::uint64_t fingerprint = hvd::detail::empty_fingerprint;
    hvd::detail::mix(fingerprint, text);
    const std::int64_t changed = hvd::detail::input_file(path()).changed();
    const std::string index = path() + ".hvd-index";
    std::ofstream(index, std::ios::binary)
        .write("hvdtar1\n", 8)
        .write(reinterpret_cast<const char*>(&archive_bytes), 8)
        .write(reinterpret_cast<const char*>(&changed), 8)
        .write(reinterpret_cast<const char*>(&fingerprint), 8)
        .write(text.data(), std::streamsize(text.size()));
    const hvd::data::tar_samples file(path());
    unlink(index.c_str());
    for (std::size_t i = 0; i < file.size(); ++i)
        for (const auto& [extension, bytes] : file.read(i).files)
            require(bytes.size() <= archive_bytes);
}

// A config file of a data service.
void read_service_config(FuzzedDataProvider& from) {
    static const std::string key = "\"key\":\"" + std::string(64, 'a') + "\"";
    static const char* const right[] = {"\"version\":1",
                                        "\"job_id\":\"j\"",
                                        "\"dispatchers\":1",
                                        "\"workers_per_dispatcher\":1",
                                        "\"dispatcher_side\":\"compute\"",
                                        "\"addresses\":[[\"127.0.0.1:1\"]]",
                                        "\"worker_addresses\":[]",
                                        key.c_str(),
                                        "\"timeout\":60"};
    std::string text = "{";
    for (const char* member : right)
        if (from.ConsumeIntegral<std::uint8_t>() != 0) text += std::string(member) + ",";
    text += words(from, {"{", "}", "[", "]", ",", ":", "\"", "1e400", "-1", "null", "true",
                         "\"version\":", "\"timeout\":", "\"addresses\":", "\"key\":",
                         "\"shared_memory\":", "\"dispatchers\":", "\"worker_addresses\":"});
    write(text + "\"end\":0}");
    ::chmod(path().c_str(), 0600);
    try {
        const auto config = hvd::data::service_config::read(path());
        require(config.version == 1 && config.dispatchers >= 0 && config.key.size() == 64 &&
                config.timeout.nanoseconds >= 0 &&
                config.addresses.size() <= std::size_t(config.dispatchers));
    } catch (const hvd::error&) {
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using reader = void (*)(FuzzedDataProvider&);
    static constexpr reader readers[] = {
        read_safetensors,    read_kept_state, read_options,  read_hosts,      read_idx,
        read_tokens,         read_tar,        read_frames,   read_allocation, read_trace,
        read_service_config, read_record,     read_autotune, read_place,      split_lines,
        read_lines,          read_value,      read_tar_index};
    static const char* const chosen = std::getenv("HVD_FUZZ_ONLY");  // the number of one of them
    FuzzedDataProvider from(data, size);
    const std::size_t last = std::size(readers) - 1;
    const auto any = from.ConsumeIntegralInRange<std::size_t>(0, last);
    const std::size_t which = chosen == nullptr ? any : std::strtoul(chosen, nullptr, 10);
    readers[std::min(which, last)](from);
    return 0;
}
