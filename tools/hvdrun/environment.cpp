// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "environment.hpp"

#include <array>
#include <cmath>
#include <filesystem>
#include <string_view>

#include <unistd.h>

namespace hvdrun {
namespace {

// Those of a job in which this hvdrun itself may run.
constexpr std::array set_by_hvdrun = {"HVD_RANK",
                                      "HVD_SIZE",
                                      "HVD_LOCAL_RANK",
                                      "HVD_LOCAL_SIZE",
                                      "HVD_RENDEZVOUS",
                                      "HVD_RENDEZVOUS_SERVED",
                                      "HVD_SECRET",
                                      "HVD_SECRET_FILE",
                                      "HVD_ELASTIC_SEAL_STATES",
                                      "HVD_ELASTIC_MIN_SIZE",
                                      "HVD_ELASTIC_MAX_SIZE",
                                      "HVD_ELASTIC_TIMEOUT",
                                      "HVD_ELASTIC_LAUNCHER_TIMEOUT"};

std::string in_milliseconds(double s) { return std::to_string(std::llround(s * 1000)) + "ms"; }

}  // namespace

environment own_environment() {
    environment result;
    for (char** one = environ; *one != nullptr; ++one) {
        const std::string_view text = *one;
        const std::size_t equals = text.find('=');
        if (equals != text.npos) result.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
    for (const char* name : set_by_hvdrun) result.erase(name);
    return result;
}

environment forwarded(const options& o) {
    environment result(o.variables.begin(), o.variables.end());
    for (const auto& [name, value] : own_environment())
        if (name.rfind("HVD_", 0) == 0) result.emplace(name, value);
    for (const char* name : set_by_hvdrun) result.erase(name);
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
