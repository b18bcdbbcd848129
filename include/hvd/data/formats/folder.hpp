// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <dirent.h>

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "input_file.hpp"

namespace hvd::inline v0::data {

/// A file and its bytes.
struct named_file {
    std::string name;  ///< below the folder: `cats/17.jpg`
    std::vector<std::byte> bytes;
};

/// Options of a folder.
struct folder_options {
    std::string ending;  ///< only files whose names end so: `.jpg`
};

/// The files of a folder and of the folders in it, by their names in order. The names are listed
/// once; the bytes are read when a sample is.
///
/// Links to files are files, and links to folders are left out.
/// **Threads**: several threads read at once.
class folder_files {
public:
    /// @throws hvd::data::file_error for a folder that can't be read.
    explicit folder_files(std::string path, const folder_options& options = {})
        : path_(std::move(path)) {
        std::set<std::string> found;
        list("", options.ending, found);
        names_.assign(found.begin(), found.end());
    }

    std::size_t size() const { return names_.size(); }
    const std::string& name(std::size_t i) const { return names_.at(i); }

    named_file read(std::size_t i) const {
        if (i >= size()) refuse(path_, "sample ", i, " of ", size());
        const hvd::detail::input_file file(path_ + "/" + names_[i]);
        named_file sample{names_[i], std::vector<std::byte>(std::size_t(file.size()))};
        file.read(0, sample.bytes.data(), sample.bytes.size());
        return sample;
    }

private:
    template <class... Parts>
    [[gnu::cold, noreturn]] static void refuse(const std::string& path, const Parts&... parts) {
        throw file_error(-1, hvd::detail::text(path.c_str(), ": ", parts...));
    }

    void list(const std::string& below, const std::string& ending,
              std::set<std::string>& found) const {
        const std::string here = path_ + "/" + below;
        DIR* const folder = ::opendir(here.c_str());
        if (folder == nullptr) refuse(here, std::strerror(errno));
        std::vector<std::string> folders;
        try {
            while (const dirent* entry = ::readdir(folder))
                add(here, below + entry->d_name, entry->d_name, ending, found, folders);
        } catch (...) {
            ::closedir(folder);
            throw;
        }
        ::closedir(folder);
        for (const std::string& inner : folders) list(inner + "/", ending, found);
    }

    static void add(const std::string& here, const std::string& name, std::string_view last,
                    std::string_view ending, std::set<std::string>& found,
                    std::vector<std::string>& folders) {
        struct stat status;
        if (last == "." || last == "..") return;
        const std::string path = here + std::string(last);
        if (::lstat(path.c_str(), &status) != 0) return;  // it was removed meanwhile
        if (S_ISDIR(status.st_mode)) folders.push_back(name);
        else if (last.ends_with(ending) && ::stat(path.c_str(), &status) == 0 &&
                 S_ISREG(status.st_mode))
            found.insert(name);
    }

    std::string path_;
    std::vector<std::string> names_;
};

}  // namespace hvd::inline v0::data
