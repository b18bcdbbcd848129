// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "environment.hpp"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include <unistd.h>

namespace hvdrun {
namespace {

struct set_variable {
    const char* name;
    const char* option;  // by which the user chooses it, or nothing
    bool is_of_mpi_too;  // also in a job whose ranks a launcher of MPI starts
};

// Those of a job in which this hvdrun itself may run.
constexpr set_variable set_by_hvdrun[] = {
    {"HVD_RANK", nullptr, true},
    {"HVD_SIZE", nullptr, true},
    {"HVD_LOCAL_RANK", nullptr, true},
    {"HVD_LOCAL_SIZE", nullptr, true},
    {"HVD_RENDEZVOUS", nullptr, true},
    {"HVD_RENDEZVOUS_SERVED", nullptr, true},
    {"HVD_SECRET", "--secret-file", false},
    {"HVD_SECRET_FILE", "--secret-file", false},
    {"HVD_ELASTIC_SEAL_STATES", "--secret-file", false},
    {"HVD_ELASTIC_MIN_SIZE", "--min-np", false},
    {"HVD_ELASTIC_MAX_SIZE", "--max-np", false},
    {"HVD_ELASTIC_TIMEOUT", "--elastic-timeout", false},
    {"HVD_ELASTIC_LAUNCHER_TIMEOUT", "--start-timeout", false}};

std::string setter(const set_variable& one) {
    return "hvdrun sets this variable" +
           (one.option == nullptr ? "" : std::string(", by ") + one.option);
}

std::string in_milliseconds(double s) { return std::to_string(std::llround(s * 1000)) + "ms"; }

}  // namespace

environment own_environment() {
    environment result;
    for (char** one = environ; *one != nullptr; ++one) {
        const std::string_view text = *one;
        const std::size_t equals = text.find('=');
        if (equals != text.npos) result.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
    for (const set_variable& one : set_by_hvdrun) result.erase(one.name);
    return result;
}

bool is_name(const std::string& name) {
    if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
    for (const char c : name)
        if (!(c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
              (c >= '0' && c <= '9')))
            return false;
    return true;
}

std::string setter_of(const std::string& name, const options& o) {
    if (name == "HVD_NETWORK_INTERFACE" && !o.interface.empty())
        return "hvdrun sets this variable, by --network-interface";
    if (name == "HVD_ELASTIC_MIN_SIZE" && o.is_elastic())
        return "hvdrun sets this variable, by --min-np";
    for (const set_variable& one : set_by_hvdrun)
        if (name == one.name && (o.chosen == backend::tcp || one.is_of_mpi_too)) return setter(one);
    return "";
}

std::vector<std::string> replaced(const options& o) {
    std::vector<std::string> result;
    if (o.chosen != backend::tcp || std::getenv("HVD_RENDEZVOUS_SERVED") != nullptr) return result;
    for (const set_variable& one : set_by_hvdrun)
        if (std::getenv(one.name) != nullptr)
            result.push_back(std::string("the environment has ") + one.name +
                             ", which no rank sees: " + setter(one));
    const char* const interface = std::getenv("HVD_NETWORK_INTERFACE");
    if (interface != nullptr && !o.interface.empty() && o.interface != interface)
        result.push_back("--network-interface " + o.interface + " holds, and not " + interface +
                         " of HVD_NETWORK_INTERFACE");
    return result;
}

environment forwarded(const options& o) {
    environment result(o.variables.begin(), o.variables.end());
    for (const auto& [name, value] : own_environment())
        if (name.rfind("HVD_", 0) == 0 && is_name(name)) result.emplace(name, value);
    for (const set_variable& one : set_by_hvdrun) result.erase(one.name);
    return result;
}

environment secret_of_user(const options& o) {
    if (o.secret_file.empty()) return {};
    return {{"HVD_SECRET_FILE", std::filesystem::absolute(o.secret_file).string()},
            {"HVD_ELASTIC_SEAL_STATES", "1"}};
}

environment contract(const options& o, const placement& place, int ranks,
                     const std::string& rendezvous) {
    environment result = {{"HVD_RANK", std::to_string(place.rank)},
                          {"HVD_SIZE", std::to_string(ranks)},
                          {"HVD_LOCAL_RANK", std::to_string(place.local_rank)},
                          {"HVD_LOCAL_SIZE", std::to_string(place.local_size)},
                          {"HVD_RENDEZVOUS", rendezvous},
                          {"HVD_RENDEZVOUS_SERVED", "1"}};
    if (!o.interface.empty()) result["HVD_NETWORK_INTERFACE"] = o.interface;
    // The next job has the user's secret, too, and no other one.
    if (!o.secret_file.empty()) result["HVD_ELASTIC_SEAL_STATES"] = "1";
    if (!o.is_elastic()) return result;
    result["HVD_ELASTIC_MIN_SIZE"] = std::to_string(o.min_np);
    result["HVD_ELASTIC_MAX_SIZE"] = std::to_string(o.max_np);
    result["HVD_ELASTIC_TIMEOUT"] = in_milliseconds(o.elastic_timeout);
    // A rank that is lost for longer counts as failed.
    result["HVD_ELASTIC_LAUNCHER_TIMEOUT"] = in_milliseconds(o.start_timeout);
    return result;
}

}  // namespace hvdrun
