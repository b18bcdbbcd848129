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
/// after the other. The headers are read once. The bytes are read when a sample is.
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
        hvd::detail::tar_reader reader(file_);
        for (hvd::detail::tar_member member; reader.next(member);) add(member);
    }

    std::size_t size() const { return samples_.size(); }

    tar_sample read(std::size_t i) const {
        file_.require_sample(i, size());
        const std::size_t last = i + 1 < size() ? samples_[i + 1].first : parts_.size();
        tar_sample sample{samples_[i].key, {}};
        for (std::size_t p = samples_[i].first; p < last; ++p) {
            std::vector<std::byte> bytes(std::size_t(parts_[p].size));
            file_.read(parts_[p].at, bytes.data(), bytes.size());
            sample.files.emplace(parts_[p].extension, std::move(bytes));
        }
        return sample;
    }

private:
    static constexpr std::size_t most_files = 1000;  // of a sample

    struct sample_place {
        std::string key;
        std::size_t first;  // of its parts
    };
    struct part_place {
        std::string extension;
        std::uint64_t at, size;
    };

    void add(const hvd::detail::tar_member& member) {
        const std::string_view name = member.name;
        const std::size_t slash = name.rfind('/'), last = slash == name.npos ? 0 : slash + 1,
                          dot = name.find('.', last);
        if (dot == name.npos || dot == last || is_about_the_archive(name)) return;
        const std::string_view key = name.substr(0, dot);
        if (samples_.empty() || samples_.back().key != key)
            samples_.push_back({std::string(key), parts_.size()});
        std::string extension(name.substr(dot + 1));
        for (char& c : extension)
            if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
        if (parts_.size() - samples_.back().first == most_files)
            file_.refuse_at(member.first, "sample ", samples_.back().key.c_str(), " has more than ",
                            most_files, " files");
        for (std::size_t p = samples_.back().first; p < parts_.size(); ++p)
            if (parts_[p].extension == extension)
                file_.refuse_at(member.first, "sample ", samples_.back().key.c_str(),
                                " has two files ", extension.c_str());
        parts_.push_back({std::move(extension), member.first, member.size});
    }

    static bool is_about_the_archive(std::string_view name) {
        const std::string_view first = name.substr(0, name.find('/'));
        return first.size() > 4 && first.starts_with("__") && first.ends_with("__");
    }

    hvd::detail::input_file file_;
    std::vector<sample_place> samples_;
    std::vector<part_place> parts_;
};

}  // namespace hvd::inline v0::data
