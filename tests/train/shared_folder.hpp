// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <optional>
#include <string>

#include "hvd_test.hpp"
#include "temporary_directory.hpp"

namespace hvd_test {

// A folder of the group, which is removed with its maker.
class shared_folder {
public:
    explicit shared_folder(communicator& comm) {
        if (comm.rank() == 0) path_ = (made_.emplace() / "").string();
        comm.broadcast_object(path_);
    }
    std::string operator/(const char* name) const { return path_ + name; }

private:
    std::optional<temporary_directory> made_;  // on rank 0
    std::string path_;
};

}  // namespace hvd_test
