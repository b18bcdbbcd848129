// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "report.hpp"

#include <algorithm>
#include <cstdio>

namespace hvd_info {
namespace {

using nlohmann::json;

constexpr const char* verdict_names[] = {"good", "note", "wrong"};

verdict verdict_of(const std::string& name) {
    for (const verdict one : {verdict::note, verdict::wrong})
        if (name == verdict_names[int(one)]) return one;
    return verdict::good;
}

check_report check_of(const json& j) {
    check_report result{j.at("check"), {}, {}};
    for (const json& f : j.at("facts")) result.facts.push_back({f.at(0), f.at(1), f.at(2)});
    for (const json& f : j.at("findings"))
        result.findings.push_back({verdict_of(f.at(0)), f.at(1), f.at(2)});
    return result;
}

// A value of the environment may have any bytes.
std::string dumped(const json& j) { return j.dump(-1, ' ', false, json::error_handler_t::replace); }

void print(const finding& one) {
    std::printf("  %s  %s\n         do: %s\n", one.level == verdict::wrong ? "WRONG" : "note ",
                one.problem.c_str(), one.remedy.c_str());
}

}  // namespace

verdict check_report::worst() const {
    verdict result = verdict::good;
    for (const finding& one : findings) result = std::max(result, one.level);
    return result;
}

bool has_wrong(const std::vector<check_report>& checks) {
    return std::any_of(checks.begin(), checks.end(),
                       [](const check_report& one) { return one.worst() == verdict::wrong; });
}

json to_json(const std::vector<check_report>& checks) {
    json all = json::object();
    for (const check_report& one : checks) {
        json facts = json::object(), findings = json::array();
        for (const fact& f : one.facts) facts[f.name] = f.value;
        for (const finding& f : one.findings)
            findings.push_back({{"verdict", verdict_names[int(f.level)]},
                                {"problem", f.problem},
                                {"remedy", f.remedy}});
        all[one.name] = {
            {"verdict", verdict_names[int(one.worst())]}, {"facts", facts}, {"findings", findings}};
    }
    return all;
}

std::string to_text(const rank_report& report) {
    json checks = json::array();
    for (const check_report& one : report.checks) {
        json facts = json::array(), findings = json::array();
        for (const fact& f : one.facts) facts.push_back({f.name, f.value, f.is_same_on_all});
        for (const finding& f : one.findings)
            findings.push_back({verdict_names[int(f.level)], f.problem, f.remedy});
        checks.push_back({{"check", one.name}, {"facts", facts}, {"findings", findings}});
    }
    return dumped({{"rank", report.rank}, {"host", report.host}, {"checks", checks}});
}

rank_report from_text(const std::string& text) {
    const json j = json::parse(text);
    rank_report result{j.at("rank"), j.at("host"), {}};
    for (const json& one : j.at("checks")) result.checks.push_back(check_of(one));
    return result;
}

void print(const std::vector<check_report>& checks) {
    for (const check_report& one : checks) {
        std::printf("%s\n", one.name.c_str());
        for (const fact& f : one.facts)
            std::printf("  %-22s %s\n", f.name.c_str(), f.value.c_str());
        for (const finding& f : one.findings) print(f);
    }
}

}  // namespace hvd_info
