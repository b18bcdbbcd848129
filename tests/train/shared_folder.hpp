// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>

#include "hvd_test.hpp"

namespace hvd_test {

// One of the group's, gone with its maker.
class shared_folder {
public:
    explicit shared_folder(communicator& comm) : comm_(comm) {
        if (comm.rank() == 0) {
            std::string name = (std::filesystem::temp_directory_path() / "hvd-XXXXXX").string();
            if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary directory");
            path_ = name;
        }
        comm.broadcast_object(path_);
    }
    ~shared_folder() {
        if (comm_.rank() == 0) std::filesystem::remove_all(path_);
    }
    std::string operator/(const char* name) const { return path_ + "/" + name; }

private:
    communicator& comm_;
    std::string path_;
};

}  // namespace hvd_test
