// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <unistd.h>

namespace hvd_test {

using values = std::map<std::string, std::string>;

// The environment with these HVD_ variables and no others, until the end of the scope.
class variables {
public:
    explicit variables(const values& ours) {
        for (char** v = environ; *v != nullptr; ++v) {
            const std::string all = *v, name = all.substr(0, all.find('='));
            if (name.starts_with("HVD_")) before_[name] = all.substr(name.size() + 1);
        }
        replace(before_, ours);
        ours_ = ours;
    }
    variables(const variables&) = delete;
    variables& operator=(const variables&) = delete;
    ~variables() { replace(ours_, before_); }

private:
    static void replace(const values& old, const values& now) {
        for (const auto& [name, value] : old) unsetenv(name.c_str());
        for (const auto& [name, value] : now) setenv(name.c_str(), value.c_str(), 1);
    }
    values before_, ours_;
};

}  // namespace hvd_test
