// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The variables that are set, with those that nobody reads and those with a wrong value.
#include <map>

#include <unistd.h>

#include <hvd/settings.hpp>

#include "checks.hpp"

namespace hvd_info {
namespace {

using variables = std::map<std::string, std::string>;

variables all_variables() {
    variables result;
    for (char** one = environ; one != nullptr && *one != nullptr; ++one) {
        const std::string text(*one);
        if (const std::size_t equal = text.find('='); equal != std::string::npos)
            result[text.substr(0, equal)] = text.substr(equal + 1);
    }
    return result;
}

bool begins(const std::string& name, std::initializer_list<const char*> prefixes) {
    for (const char* one : prefixes)
        if (name.starts_with(one)) return true;
    return false;
}

// Those that a launcher gives each rank, so that they differ on purpose, or that are of one host.
bool is_of_launcher(const std::string& name) {
    return begins(name, {"HVD_RANK",
                         "HVD_SIZE",
                         "HVD_LOCAL_",
                         "HVD_RENDEZVOUS",
                         "HVD_SECRET",
                         "HVD_ADDRESS",
                         "HVD_HOST_ID",
                         "HVD_TEST_",
                         "OMPI_COMM_WORLD_",
                         "OMPI_MCA_orte_",
                         "OMPI_MCA_ess",
                         "OMPI_MCA_pmix",
                         "OMPI_ARGV",
                         "OMPI_COMMAND",
                         "OMPI_FILE_LOCATION",
                         "OMPI_FIRST_RANKS",
                         "OMPI_NUM_APP_CTX",
                         "OMPI_APP_CTX",
                         "OMPI_UNIVERSE_SIZE",
                         "OMPI_MCA_initial_wdir",
                         "OMPI_MCA_plm",
                         "OMPI_MCA_prte",
                         "OMPI_MCA_shmem_RUNTIME"});
}

// True for a setting, and for what else hvd, its launcher, its tests or its tools read.
bool is_known(const std::string& name) {
    bool found =
        name == "HVD_CONFIG" || hvd::detail::is_named_by(name, hvd::detail::variables_read_unasked);
    hvd::detail::for_each_setting(
        [&](const hvd::detail::setting& s) { found = found || name == s.variable; });
    return found;
}

std::string nearest_name(const std::string& unknown) {
    hvd::detail::best_spelling meant(unknown);
    hvd::detail::for_each_setting([&](const hvd::detail::setting& s) { meant.offer(s.variable); });
    for (const std::string_view name : hvd::detail::variables_to_ask_for)
        if (name.back() != '_') meant.offer(name);
    for (const std::string_view name : hvd::detail::variables_read_unasked)
        if (name.back() != '_') meant.offer(name);
    return std::string(meant.best());
}

void judge_name(check_report& report, const std::string& name) {
    if (is_known(name)) return;
    const std::string meant = nearest_name(name);
    report.wrong(name + " is no variable of hvd, so that nobody reads it" +
                     (meant.empty() ? "" : "; " + meant + " is one"),
                 meant.empty() ? "remove it: docs/reference/settings.md lists those that there are"
                               : "set " + meant + " instead");
}

template <class Options>
void judge_values(check_report& report, const hvd::configuration& written) {
    try {
        static_cast<void>(written.apply<Options>());
    } catch (const hvd::usage_error& error) {
        report.wrong(std::string(error.what()),
                     "correct the value: docs/reference/settings.md has the range");
    }
}

// HVD_CONFIG is read by a program, if it asks for a file.
void judge_all_values(check_report& report) {
    static constexpr std::string_view others[] = {"HVD_CONFIG"};
    const hvd::message_sink before = hvd::set_message_sink([](std::string_view) {});
    const auto written = hvd::configuration::from_environment({.others = others});
    hvd::set_message_sink(before);
    judge_values<hvd::communicator_options>(report, written);
    judge_values<hvd::engine_options>(report, written);
    judge_values<hvd::autotune_options>(report, written);
    judge_values<hvd::timeline_options>(report, written);
    judge_values<hvd::tcp_options>(report, written);
    judge_values<hvd::elastic::bounds>(report, written);
}

void judge_file(check_report& report, const char* variable, const std::string& value) {
    if (::access(value.c_str(), R_OK) == 0) return;
    report.wrong(std::string(variable) + " names " + value + ", which cannot be read on this host",
                 "give a file that is there on each host, by its full path");
}

// hvd reads no variable of Horovod. Its own table names those that it has in their place.
void judge_horovod(check_report& report, const std::string& name) {
    std::string instead;
    hvd::detail::for_each_setting([&](const hvd::detail::setting& s) {
        const std::string replaced = std::string(", ") + s.replaces + ",";
        if (replaced.find(" " + name + ",") != std::string::npos)
            instead += (instead.empty() ? "" : ", ") + std::string(s.variable);
    });
    report.note(name + " is set, and hvd reads no variable of Horovod",
                instead.empty() ? "docs/from_horovod.md has the counterparts" : "set " + instead);
}

}  // namespace

check_report check_variables(const context&) {
    check_report report{"variables", {}, {}};
    for (const auto& [name, value] : all_variables()) {
        if (name.starts_with("HOROVOD_")) judge_horovod(report, name);
        if (!begins(name, {"HVD_", "NCCL_", "OMPI_"})) continue;
        report.facts.push_back(
            {name, name == "HVD_SECRET" ? "(hidden)" : value, !is_of_launcher(name)});
        if (value.empty()) continue;  // the same as not set
        if (name.starts_with("HVD_")) judge_name(report, name);
        if (name == "HVD_CONFIG" || name == "HVD_SECRET_FILE")
            judge_file(report, name.c_str(), value);
    }
    judge_all_values(report);
    return report;
}

}  // namespace hvd_info
