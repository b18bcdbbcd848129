// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "input_file.hpp"
#include "tar_index.hpp"
#include "tar_reader.hpp"

namespace hvd::inline v0::data {

/// The files of an archive that belong together: `17.jpg` and `17.cls` have the key `17`.
struct tar_sample {
    std::string key;
    std::map<std::string, std::vector<std::byte>> files;  ///< by extension: `jpg`, `seg.png`

    /// The bytes of the file with an extension.
    /// @throws hvd::data::file_error if the sample has none.
    const std::vector<std::byte>& operator[](const std::string& extension) const {
        const auto found = files.find(extension);
        if (found == files.end()) refuse(extension);
        return found->second;
    }

private:
    [[gnu::cold, noreturn]] void refuse(const std::string& extension) const {
        hvd::detail::message known;
        for (const auto& [name, bytes] : files)
            known = hvd::detail::text(known, known.empty() ? "" : ", ", name.c_str());
        throw file_error(-1, hvd::detail::text("sample ", key.c_str(), " has no file ",
                                               extension.c_str(), ", it has ", known));
    }
};

/// A tar archive of samples, as WebDataset's: not compressed, and with the files of a sample one
/// after the other. The bytes are read when a sample is.
///
/// The headers are read once: their index is kept beside the archive, in a file with the ending
/// `.hvd-index`, where that can be written. An archive that has changed gets another one.
///
/// A file's key is its path up to the first dot of its last part, and the rest, in lower case, its
/// extension. Files without an extension or a key, and those whose first part is `__name__`, are
/// left out, as WebDataset does. Names may be long (pax and GNU), and files large.
/// **Threads**: several threads read at once.
/// @snippet tests/data/snippets.cpp tar
class tar_samples {
public:
    /// @throws hvd::data::file_error for a file that is absent, damaged or no archive, and for a
    /// sample with two files of one extension.
    explicit tar_samples(std::string path) : file_(std::move(path)) {
        const hvd::detail::tar_index_file kept(file_);
        if (kept.read(index_)) return;
        hvd::detail::tar_reader reader(file_);
        for (hvd::detail::tar_member member; reader.next(member);) add(member);
        kept.write(index_);
    }

    std::size_t size() const { return index_.keys.size(); }

    tar_sample read(std::size_t i) const {
        file_.require_sample(i, size());
        tar_sample sample{index_.keys[i], {}};
        for (std::size_t p = std::size_t(index_.begins[i]); p < index_.end_of(i); ++p) {
            std::vector<std::byte> bytes(std::size_t(index_.sizes[p]));
            file_.read(index_.at[p], bytes.data(), bytes.size());
            sample.files.emplace(index_.extensions[p], std::move(bytes));
        }
        return sample;
    }

private:
    static constexpr std::size_t most_files = 1000;  // of a sample

    void add(const hvd::detail::tar_member& member) {
        const std::string_view name = member.name;
        const std::size_t slash = name.rfind('/'), last = slash == name.npos ? 0 : slash + 1,
                          dot = name.find('.', last);
        if (dot == name.npos || dot == last || is_about_the_archive(name)) return;
        const std::string_view key = name.substr(0, dot);
        if (index_.keys.empty() || index_.keys.back() != key) {
            index_.keys.emplace_back(key);
            index_.begins.push_back(index_.at.size());
        }
        std::string extension(name.substr(dot + 1));
        for (char& c : extension)
            if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
        const std::size_t begin = std::size_t(index_.begins.back());
        if (index_.at.size() - begin == most_files)
            file_.refuse_at(member.first, "sample ", index_.keys.back().c_str(), " has more than ",
                            most_files, " files");
        for (std::size_t p = begin; p < index_.at.size(); ++p)
            if (index_.extensions[p] == extension)
                file_.refuse_at(member.first, "sample ", index_.keys.back().c_str(),
                                " has two files ", extension.c_str());
        index_.extensions.push_back(std::move(extension));
        index_.at.push_back(member.first);
        index_.sizes.push_back(member.size);
    }

    static bool is_about_the_archive(std::string_view name) {
        const std::string_view first = name.substr(0, name.find('/'));
        return first.size() > 4 && first.starts_with("__") && first.ends_with("__");
    }

    hvd::detail::input_file file_;
    hvd::detail::tar_index index_;
};

}  // namespace hvd::inline v0::data
