// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace word2vec {

/// A text as numbers of words. The vocabulary is sorted by frequency, then by the alphabet.
struct corpus {
    std::vector<std::string> words;
    std::vector<std::uint32_t> counts;  // the number of each word in the whole text
    std::vector<std::uint32_t> text;

    /// Returns the number of a word, or `words.size()`.
    std::size_t find(std::string_view word) const {
        return static_cast<std::size_t>(std::ranges::find(words, word) - words.begin());
    }
};

/// Calls `f(word)` for each run of two or more letters, in lower case. Perl's documentation has
/// markup: lines beginning with `=` are commands, and `C<code>` is text in a font.
template <class F>
void for_each_word(std::string_view line, F f) {
    if (line.starts_with('=')) line.remove_prefix(std::min(line.find(' '), line.size()));
    std::string word;
    const auto end_word = [&](char next) {
        const bool font = word.size() == 1 && next == '<';
        if (word.size() > 1 && !font) f(word);
        word.clear();
    };
    for (const char c : line) {
        const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
        if (lower >= 'a' && lower <= 'z') word += lower;
        else end_word(c);
    }
    end_word('\n');
}

/// Reads all files of a folder that end in .pod, in the order of their names. It leaves out words
/// that occur less than `least` times, and everything after `limit` words (0: no limit).
/// @throws std::runtime_error if there are no words.
inline corpus read_corpus(const std::filesystem::path& folder, std::uint32_t least,
                          std::size_t limit) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
        if (entry.path().extension() == ".pod") files.push_back(entry.path());
    std::ranges::sort(files);

    std::unordered_map<std::string, std::uint32_t> seen;
    std::vector<std::uint32_t> text;  // words numbered by first appearance
    std::vector<std::pair<std::uint32_t, std::string>> counted;
    for (const auto& path : files) {
        std::ifstream file(path);
        for (std::string line; std::getline(file, line) && (limit == 0 || text.size() < limit);)
            for_each_word(line, [&](const std::string& word) {
                const auto [at, is_new] =
                    seen.try_emplace(word, static_cast<std::uint32_t>(counted.size()));
                if (is_new) counted.emplace_back(0, word);
                ++counted[at->second].first;
                text.push_back(at->second);
            });
    }

    std::vector<std::pair<std::uint32_t, std::string>> order = counted;
    std::ranges::sort(order, [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    corpus result;
    std::vector<std::uint32_t> number(counted.size(), ~std::uint32_t(0));
    for (const auto& [count, word] : order) {
        if (count < least) break;
        number[seen[word]] = static_cast<std::uint32_t>(result.words.size());
        result.words.push_back(word);
        result.counts.push_back(count);
    }
    for (const std::uint32_t word : text)
        if (number[word] != ~std::uint32_t(0)) result.text.push_back(number[word]);
    if (result.text.empty())
        throw std::runtime_error(folder.string() + ": no words in its .pod files");
    return result;
}

}  // namespace word2vec
