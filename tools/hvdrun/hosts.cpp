// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "hosts.hpp"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <string_view>

#include "failure.hpp"
#include "numbers.hpp"

namespace hvdrun {
namespace {

int sum(int a, int b) { return int(std::min<std::int64_t>(std::int64_t(a) + b, INT_MAX)); }

}  // namespace

bool is_host(std::string_view name) {
    if (name.empty() || name.front() == '-') return false;
    for (const char c : name) {
        const bool word =
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!word && std::string_view("-_.:@%").find(c) == std::string_view::npos) return false;
    }
    return true;
}

bool read_slots(std::string_view text, int& number) {
    return read_decimal(text, number) && number > 0 && number <= most_slots;
}

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
    if (slots.empty() || read_slots(slots.substr(1), result.slots)) return "";
    return slots_expected;
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
