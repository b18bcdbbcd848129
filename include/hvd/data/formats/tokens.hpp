// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../../protocol/agreement.hpp"
#include "input_file.hpp"

namespace hvd::inline v0::data {

/// Options of a token file.
struct token_options {
    std::size_t length = 1024;  ///< A window has one token more, the target of its last one.
    std::size_t stride = 0;     ///< from a window's first token to the next one's; 0: `length`
    bool has_header = true;     ///< as the files of llm.c; without, all bytes are tokens
};

/// A file of tokens, as llm.c writes them (`.bin`): a header of 256 numbers of 32 bits, and tokens
/// of 16 bits (GPT-2) or 32 bits (Llama 3). A sample is a window of `length` + 1 tokens.
/// **Threads**: several threads read at once.
/// @snippet tests/data/snippets.cpp tokens
template <class Token = std::uint16_t>
    requires std::same_as<Token, std::uint16_t> || std::same_as<Token, std::uint32_t>
class token_file {
    static_assert(std::endian::native == std::endian::little, "hvd: token files are little-endian");

public:
    /// @throws hvd::data::file_error for a file that is absent, of another format or kind of
    /// tokens, or of another size than its header says; hvd::usage_error for a length of 0.
    explicit token_file(std::string path, token_options options = {})
        : file_(std::move(path)),
          length_(options.length),
          stride_(options.stride == 0 ? options.length : options.stride) {
        if (length_ == 0 || length_ > most_length)
            hvd::detail::refuse(-1, "windows of ", length_, " tokens, from 1 to ", most_length,
                                " were expected");
        if (options.has_header) read_header();
        else if (file_.size() % sizeof(Token) != 0)
            file_.refuse("torn: its ", file_.size(), " bytes are no tokens of ", sizeof(Token));
        else tokens_ = file_.size() / sizeof(Token);
    }

    /// The number of windows.
    std::size_t size() const {
        return tokens_ > length_ ? std::size_t((tokens_ - 1 - length_) / stride_ + 1) : 0;
    }
    /// The number of tokens in the file.
    std::uint64_t tokens() const { return tokens_; }

    std::vector<Token> read(std::size_t i) const {
        file_.require_sample(i, size());
        std::vector<Token> window(length_ + 1);
        file_.read(first_byte_ + std::uint64_t(i) * stride_ * sizeof(Token), window.data(),
                   window.size() * sizeof(Token));
        return window;
    }

private:
    static constexpr std::size_t most_length = std::size_t(1) << 30;
    // llm.c's dataloader.h and dev/data.
    static constexpr bool is_short = sizeof(Token) == 2;
    static constexpr std::uint32_t magic = is_short ? 20240520 : 20240801;
    static constexpr std::uint32_t version = is_short ? 1 : 7;

    void read_header() {
        std::uint32_t header[256];
        if (file_.size() < sizeof header)
            file_.refuse("not a token file: it has ", file_.size(), " bytes, its header alone ",
                         sizeof header);
        file_.read(0, header, sizeof header);
        if (header[0] != magic)
            file_.refuse_at(0, "it begins with ", header[0], ", and a file of tokens of ",
                            8 * sizeof(Token), " bits begins with ", magic);
        if (header[1] != version)
            file_.refuse_at(4, "version ", header[1], ", and ", version, " was expected");
        tokens_ = header[2];
        first_byte_ = sizeof header;
        if (file_.size() - first_byte_ != tokens_ * sizeof(Token))
            file_.refuse_at(8, "its header says ", tokens_, " tokens, it has ",
                            file_.size() - first_byte_, " bytes of them");
    }

    hvd::detail::input_file file_;
    std::uint64_t length_, stride_;
    std::uint64_t first_byte_ = 0;
    std::uint64_t tokens_ = 0;
};

}  // namespace hvd::inline v0::data
