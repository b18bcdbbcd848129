// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "file_descriptor.hpp"

namespace hvdrun {

// A value of a JSON object.
struct json_value {
    json_value(const std::string& value);
    json_value(const char* value) : json_value(std::string(value)) {}
    json_value(int number) : text(std::to_string(number)) {}
    json_value(std::int64_t number) : text(std::to_string(number)) {}
    json_value(double number);
    json_value(const std::vector<int>& numbers);

    std::string text;
};

// A file with one JSON object for each event, written at once.
class event_log {
public:
    // Without a path nothing is written.
    explicit event_log(const std::string& path);

    void add(const char* event, const std::vector<std::pair<const char*, json_value>>& values);

    // True when an event could not be written, which has been told. None follows it.
    bool is_cut_off() const { return is_cut_off_; }

private:
    file_descriptor file_;
    bool is_cut_off_ = false;
};

}  // namespace hvdrun
