// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "hosts.hpp"

#include <algorithm>
#include <charconv>
#include <climits>
#include <cstdint>
#include <fstream>
#include <string_view>

#include "failure.hpp"

namespace hvdrun {
namespace {

constexpr int most_slots = 1 << 16;

bool read_number(std::string_view text, int& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size() && number > 0 &&
           number <= most_slots;
}

bool is_host(std::string_view name) {
    if (name.empty() || name.front() == '-') return false;
    for (const char c : name) {
        const bool word =
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!word && std::string_view("-_.:@%").find(c) == std::string_view::npos) return false;
    }
    return true;
}

// `name`, `name:slots` or `[IPv6]:slots`; slots that are not given are 0. Returns why it is none
// of them, or an empty string.
std::string read_host(std::string_view text, host_slots& result) {
    std::string_view name = text, slots;
    if (!text.empty() && text.front() == '[') {
        const std::size_t end = text.find(']');
        if (end == std::string_view::npos) return "a [ is not closed";
        name = text.substr(1, end - 1);
        slots = text.substr(end + 1);
        if (!slots.empty() && slots.front() != ':') return "a colon was expected after ]";
    } else if (const std::size_t colon = text.find(':'); colon != std::string_view::npos) {
        name = text.substr(0, colon);
        slots = text.substr(colon);
    }
    if (!is_host(name)) return "this is no name of a host";
    result.host = name;
    result.slots = 0;
    if (slots.empty() || read_number(slots.substr(1), result.slots)) return "";
    return "slots must be a number from 1 to 65536";
}

int sum(int a, int b) { return int(std::min<std::int64_t>(std::int64_t(a) + b, INT_MAX)); }

std::vector<std::string_view> words_of(std::string_view line) {
    std::vector<std::string_view> result;
    for (;;) {
        const std::size_t begin = line.find_first_not_of(" \t\r");
        if (begin == std::string_view::npos) return result;
        line.remove_prefix(begin);
        const std::size_t end = line.find_first_of(" \t\r");
        result.push_back(line.substr(0, end));
        line.remove_prefix(result.back().size());
    }
}

// Reads a line of a hostfile without its comment. Returns why it is wrong, or an empty string.
std::string read_line(std::string_view line, host_list& hosts) {
    const std::vector<std::string_view> all = words_of(line);
    if (all.empty()) return "";
    host_slots one;
    if (const std::string why = read_host(all[0], one); !why.empty()) return why;
    bool has_slots = one.slots > 0;
    int most = most_slots;
    for (std::size_t i = 1; i < all.size(); ++i) {
        const std::size_t equals = all[i].find('=');
        const std::string_view key = all[i].substr(0, equals);
        const std::string_view value = equals == all[i].npos ? "" : all[i].substr(equals + 1);
        const bool is_slots = key == "slots", is_most = key == "max_slots" || key == "max-slots";
        if (!is_slots && !is_most) return "slots=N or max_slots=N was expected";
        if (is_slots && has_slots) return "slots are given twice";
        if (!read_number(value, is_slots ? one.slots : most))
            return std::string(key) + " must be a number from 1 to 65536";
        has_slots = has_slots || is_slots;
    }
    if (!has_slots && most != most_slots) one.slots = most;
    if (one.slots > most) return "slots are more than max_slots";
    add_slots(hosts, one);
    return "";
}

}  // namespace

void add_slots(host_list& hosts, host_slots more) {
    if (more.slots == 0) more.slots = 1;
    for (host_slots& known : hosts) {
        if (known.host == more.host) {
            known.slots = sum(known.slots, more.slots);
            return;
        }
    }
    hosts.push_back(more);
}

host_list parse_hosts(const std::string& text) {
    host_list result;
    std::string_view rest = text;
    for (;;) {
        const std::size_t comma = rest.find(',');
        const std::string_view one = rest.substr(0, comma);
        host_slots host;
        if (const std::string why = read_host(one, host); !why.empty())
            throw usage_failure("-H " + text + ": \"" + std::string(one) + "\": " + why);
        add_slots(result, host);
        if (comma == std::string_view::npos) return result;
        rest.remove_prefix(comma + 1);
    }
}

host_list read_hostfile(const std::string& path) {
    std::ifstream file(path);
    if (!file) throw usage_failure("--hostfile " + path + ": the file cannot be read");
    host_list result;
    int number = 0;
    for (std::string line; std::getline(file, line);) {
        ++number;
        const std::string why = read_line(std::string_view(line).substr(0, line.find('#')), result);
        if (!why.empty())
            throw usage_failure(path + ":" + std::to_string(number) + ": \"" + line + "\": " + why);
    }
    if (file.bad()) throw usage_failure("--hostfile " + path + ": the file cannot be read");
    if (result.empty()) throw usage_failure("--hostfile " + path + ": the file names no host");
    return result;
}

host_list read_discovered(const std::string& text, int slots_per_host) {
    host_list result;
    std::string_view rest = text;
    while (!rest.empty()) {
        const std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(rest.size(), line.size() + 1));
        const std::vector<std::string_view> all = words_of(line.substr(0, line.find('#')));
        if (all.empty()) continue;
        host_slots one;
        const std::string why = all.size() > 1 ? "host:slots was expected" : read_host(all[0], one);
        if (!why.empty()) throw failure(1, "it has printed \"" + std::string(line) + "\": " + why);
        if (one.slots == 0) one.slots = slots_per_host;
        add_slots(result, one);
    }
    return result;
}

int number_of_slots(const host_list& hosts) {
    int n = 0;
    for (const host_slots& one : hosts) n = sum(n, one.slots);
    return n;
}

std::vector<placement> place(const host_list& hosts, int ranks) {
    std::vector<placement> result;
    for (const host_slots& one : hosts) {
        const int rest = ranks - int(result.size());
        const int here = one.slots < rest ? one.slots : rest;
        for (int i = 0; i < here; ++i) result.push_back({int(result.size()), one.host, i, here});
    }
    if (int(result.size()) < ranks)
        throw usage_failure("-np " + std::to_string(ranks) + ": the hosts have only " +
                            std::to_string(result.size()) + " slots");
    return result;
}

}  // namespace hvdrun
