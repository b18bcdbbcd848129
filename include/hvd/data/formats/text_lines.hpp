// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "input_file.hpp"

namespace hvd::inline v0::data {

/// The lines of a text file, without their line feeds. The file is read once for their offsets, of
/// which each takes eight bytes.
/// **Threads**: several threads read at once.
class text_lines {
public:
    /// @throws hvd::data::file_error for a file that can't be read.
    explicit text_lines(std::string path) : file_(std::move(path)) { find_lines(); }

    std::size_t size() const { return offsets_.size() - 1; }

    std::string read(std::size_t i) const {
        file_.require_sample(i, size());
        const std::uint64_t first = offsets_[i], last = offsets_[i + 1] - 1;
        std::string line(std::size_t(last - first), ' ');
        file_.read(first, line.data(), line.size());
        return line;
    }

private:
    void find_lines() {
        std::vector<char> buffer(std::size_t(1) << 18);
        offsets_.push_back(0);
        for (std::uint64_t first = 0; first < file_.size();) {
            const std::uint64_t left = file_.size() - first;
            const std::size_t n = left < buffer.size() ? std::size_t(left) : buffer.size();
            file_.read(first, buffer.data(), n);
            const char *at = buffer.data(), *const end = at + n;
            while ((at = static_cast<const char*>(std::memchr(at, '\n', std::size_t(end - at)))))
                offsets_.push_back(first + std::uint64_t(++at - buffer.data()));
            first += n;
        }
        // The last line may have no line feed. Its end is where one would be.
        if (offsets_.back() != file_.size()) offsets_.push_back(file_.size() + 1);
    }

    hvd::detail::input_file file_;
    std::vector<std::uint64_t> offsets_;  // of each line's first byte, and behind the last line
};

}  // namespace hvd::inline v0::data
