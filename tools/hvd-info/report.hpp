// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace hvd_info {

// A note is advice: a job works without it. Wrong is that by which a job fails, hangs, falls into
// several jobs, or is much slower.
enum class verdict { good, note, wrong };

struct fact {
    std::string name, value;
    bool is_same_on_all = false;  // a rank with another value is told
};

struct finding {
    verdict level;
    std::string problem, remedy;
};

// The facts of one check, and what is to be done about them.
struct check_report {
    std::string name;
    std::vector<fact> facts;
    std::vector<finding> findings;

    // An empty value is one that the system does not tell.
    void add(const std::string& fact_name, const std::string& value, bool is_same_on_all = false) {
        facts.push_back({fact_name, value.empty() ? "unknown" : value, is_same_on_all});
    }
    // A fact that all ranks should have in common.
    void add_common(const std::string& fact_name, const std::string& value) {
        add(fact_name, value, true);
    }
    void note(const std::string& problem, const std::string& remedy) {
        findings.push_back({verdict::note, problem, remedy});
    }
    void wrong(const std::string& problem, const std::string& remedy) {
        findings.push_back({verdict::wrong, problem, remedy});
    }
    verdict worst() const;
};

// One rank's reports.
struct rank_report {
    int rank = 0;
    std::string host;
    std::vector<check_report> checks;
};

bool has_wrong(const std::vector<check_report>& checks);

nlohmann::json to_json(const std::vector<check_report>& checks);
// A rank's report as it travels, and back. Throws for bytes that are none.
std::string to_text(const rank_report& report);
rank_report from_text(const std::string& text);

// Prints facts and findings for people.
void print(const std::vector<check_report>& checks);

}  // namespace hvd_info
