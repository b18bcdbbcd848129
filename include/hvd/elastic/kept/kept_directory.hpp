// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <climits>
#include <vector>

#include "../../platform/linux.hpp"
#include "../../train/checkpoint/atomic_file.hpp"

namespace hvd::inline v0::detail {

// The directory of a state. It is opened once: all files are those of the directory that was
// checked, whoever gives its name to another one later.
class kept_directory {
public:
    // @throws checkpoint_error if it is missing and can't be made, can't be written, or others may
    // replace its files
    explicit kept_directory(std::string path) : path_(std::move(path)) {
        require_no_nul(path_, "the path", path_);
        if (::mkdir(path_.c_str(), 0755) != 0 && errno != EEXIST)
            refuse_file(path_, "cannot be made: ", std::strerror(errno));
        open();
        struct stat status{};
        if (::fstat(folder_.get(), &status) != 0)
            refuse_file(path_, "cannot be opened: ", std::strerror(errno));
        if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (status.st_mode & S_ISVTX) == 0)
            refuse_file(path_, "can be written by ",
                        (status.st_mode & S_IWOTH) != 0 ? "all users" : "its group",
                        ", who may replace a state: it needs a mode such as 700");
        if (::faccessat(folder_.get(), ".", R_OK | W_OK | X_OK, 0) != 0)
            refuse_file(path_, "cannot be written: ", std::strerror(errno));
    }

    const std::string& path() const { return path_; }
    file_place place_of(std::string name) const {
        return file_place(folder_.get(), path_, std::move(name));
    }

    // The names of its files that end so.
    std::vector<std::string> names_with(std::string_view suffix) const {
        std::vector<std::string> all;
        const auto take = [&](std::string_view name) {
            if (name.ends_with(suffix)) all.emplace_back(name);
        };
        if (!for_each_name_in(folder_.get(), ".", take))
            refuse_file(path_, "cannot be read: ", std::strerror(errno));
        return all;
    }

private:
    static constexpr int most_links = 40;

    // The links on the way to the last name are the system's to follow, as for every path.
    void open() {
        std::string at = without_end(path_);
        for (int links = 0; links < most_links; ++links) {
            folder_ = file_descriptor(at, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
            if (folder_.get() >= 0) return;
            const int refusal = errno;
            const std::string target = target_of(at);
            if (target.empty() && (refusal == ENOTDIR || refusal == ELOOP))
                refuse_file(path_, "is no directory");
            if (target.empty()) refuse_file(path_, "cannot be opened: ", std::strerror(refusal));
            if (target[0] == '/') at.clear();
            at = without_end(at.substr(0, at.rfind('/') + 1) + target);
        }
        refuse_file(path_, "is a link that leads to no end");
    }

    // The target of a link, or nothing for what is none. The owner of a link may make it lead
    // elsewhere at any time.
    std::string target_of(const std::string& name) const {
        const file_descriptor link(name, opens_link);
        struct stat status{};
        if (link.get() < 0 || ::fstat(link.get(), &status) != 0 || !S_ISLNK(status.st_mode))
            return {};
        if (status.st_uid != ::geteuid() && status.st_uid != 0)
            refuse_file(path_, "leads through the link ", name, ", which belongs to user ",
                        status.st_uid, ", who may change it: links of user ", ::geteuid(),
                        " and of the superuser are followed");
        char target[PATH_MAX];
        const ssize_t n = ::readlinkat(link.get(), "", target, sizeof target);
        return {target, n > 0 ? std::size_t(n) : 0};
    }

    // A path that ends so would lead through a link.
    static std::string without_end(std::string path) {
        while (path.size() > 1 && (path.ends_with('/') || path.ends_with("/.")))
            path.resize(path.size() - 1);
        return path;
    }

    const std::string path_;
    file_descriptor folder_;
};

}  // namespace hvd::inline v0::detail
