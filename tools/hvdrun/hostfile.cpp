// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <array>
#include <fstream>

#include "failure.hpp"
#include "hosts.hpp"

namespace hvdrun {
namespace {

template <std::size_t N>
bool is_one_of(std::string_view word, const std::array<std::string_view, N>& all) {
    return std::find(all.begin(), all.end(), word) != all.end();
}

// The words of Open MPI's hostfiles, of Hydra's, and where hvdrun has the same.
constexpr std::array<std::string_view, 3> for_slots = {"slots", "count", "cpu"};
constexpr std::array<std::string_view, 4> for_most = {"max_slots", "max-slots", "slots_max",
                                                      "slots-max"};
constexpr std::array<std::string_view, 4> for_user = {"user", "username", "user-name", "user_name"};
constexpr std::pair<std::string_view, const char*> not_read[] = {
    {"port", "-p gives the port of ssh"},
    {"ifname", "--network-interface chooses the interface"},
    {"binding", "hvdrun binds no rank"}};

// A line of a hostfile.
struct host_line {
    host_slots host;
    bool has_slots = false;
    int most = most_slots;

    // Takes `key=value`. Returns why it is wrong, or an empty string.
    std::string take(std::string_view word);
};

std::string host_line::take(std::string_view word) {
    const std::size_t equals = word.find('=');
    const std::string_view key = word.substr(0, equals);
    const std::string_view value = equals == word.npos ? "" : word.substr(equals + 1);
    for (const auto& [name, ours] : not_read)
        if (key == name) return ours;
    if (is_one_of(key, for_user)) {
        host.host = std::string(value) + "@" + host.host;
        return is_host(value) ? "" : "a name of a user was expected";
    }
    const bool is_slots = is_one_of(key, for_slots);
    if (!is_slots && !is_one_of(key, for_most)) return "slots=N or max_slots=N was expected";
    if (is_slots && has_slots) return "slots are given twice";
    has_slots = has_slots || is_slots;
    if (read_slots(value, is_slots ? host.slots : most)) return "";
    return std::string(key) + " must be a number from 1 to 65536";
}

// Slurm's files may repeat a host by `host*2`. Its ranges are for scontrol.
std::string read_name(std::string_view word, host_slots& host) {
    const bool is_range = word.find('[') != word.npos && word.front() != '[';
    if (is_range) return "hvdrun reads no ranges: scontrol show hostnames expands them";
    const std::size_t star = word.find('*');
    if (star == word.npos) return read_host(word, host);
    const std::string why = read_host(word.substr(0, star), host);
    if (!why.empty() || host.slots > 0) return why.empty() ? "slots are given twice" : why;
    return read_slots(word.substr(star + 1), host.slots) ? "" : slots_expected;
}

// Open MPI takes blanks around an equals sign.
std::string without_blanks_at_equals(std::string_view line) {
    std::string result;
    for (const char c : line) {
        const bool is_blank = c == ' ' || c == '\t';
        if (is_blank && result.ends_with('=')) continue;
        if (c == '=')
            while (result.ends_with(' ') || result.ends_with('\t')) result.pop_back();
        result += c;
    }
    return result;
}

// Reads a line without its comment. Returns why it is wrong, or an empty string.
std::string read_line(std::string_view text, host_list& hosts) {
    const std::string joined = without_blanks_at_equals(text);
    const std::vector<std::string_view> all = words_of(joined);
    if (all.empty()) return "";
    host_line line;
    if (const std::string why = read_name(all[0], line.host); !why.empty()) return why;
    line.has_slots = line.host.slots > 0;
    for (std::size_t i = 1; i < all.size(); ++i)
        if (const std::string why = line.take(all[i]); !why.empty()) return why;
    if (!line.has_slots && line.most != most_slots) line.host.slots = line.most;
    if (line.host.slots > line.most) return "slots are more than max_slots";
    add_slots(hosts, line.host);
    return "";
}

// A byte that can't be seen is shown as its number.
std::string visible(std::string_view text) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string result;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if ((byte >= ' ' && byte < 0x7f) || c == '\t') result += c;
        else result += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    }
    return result;
}

}  // namespace

host_list read_hostfile(const std::string& path) {
    std::ifstream file(path);
    if (!file) throw usage_failure("--hostfile " + path + ": the file cannot be read");
    host_list result;
    int number = 0;
    for (std::string line; std::getline(file, line);) {
        // Editors of Windows begin a file with a mark.
        if (++number == 1 && line.starts_with("\xef\xbb\xbf")) line.erase(0, 3);
        const std::string why = read_line(std::string_view(line).substr(0, line.find('#')), result);
        if (!why.empty())
            throw usage_failure(path + ":" + std::to_string(number) + ": \"" + visible(line) +
                                "\": " + why);
    }
    if (file.bad()) throw usage_failure("--hostfile " + path + ": the file cannot be read");
    if (result.empty()) throw usage_failure("--hostfile " + path + ": the file names no host");
    return result;
}

}  // namespace hvdrun
