// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include <hvd/train.hpp>

#include "corpus.hpp"

namespace word2vec {

/// Random numbers from a position. Those for a word of the text are the same on any number of
/// ranks.
class random_numbers {
public:
    random_numbers(std::uint64_t a, std::uint64_t b) : state_(mixed(a + mixed(b))) {}
    std::uint64_t next() { return mixed(state_ += 0x9e3779b97f4a7c15); }
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

private:
    // The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    static std::uint64_t mixed(std::uint64_t z) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    std::uint64_t state_;
};

/// Skip-gram with negative sampling (Mikolov et al. 2013, arXiv:1310.4546). A word's vector tells
/// nearby words from words drawn at random.
class skip_gram {
public:
    struct settings {
        std::size_t dimensions = 64;
        int window = 5;
        int negatives = 5;
        double frequent = 1e-4;  // words more frequent than this are left out at times
        std::size_t rows = 0;    // of the tables, if more than the words: for words to come
    };

    skip_gram(const corpus& corpus, const settings& settings)
        : corpus_(corpus),
          settings_(settings),
          vectors_(std::max(corpus.words.size(), settings.rows) * settings.dimensions),
          contexts_(vectors_.size()),
          vectors_table_(vectors_.size()),
          contexts_table_(vectors_.size()) {
        random_numbers random(1, 1);
        for (float& x : vectors_)
            x = static_cast<float>((random.uniform() - 0.5) /
                                   static_cast<double>(settings.dimensions));
        double sum = 0;
        for (const std::uint32_t count : corpus.counts)
            cumulated_.push_back(sum += std::pow(count, 0.75));
    }

    /// Computes the gradients' rows of the words at these positions of the text, and the loss of
    /// their pairs.
    void backward(std::span<const std::size_t> places, std::uint64_t epoch) {
        vector_rows = {};
        context_rows = {};
        for (const std::size_t place : places) {
            random_numbers random(epoch + 2, place);
            if (keeps(corpus_.text[place], random)) learn(place, random);
        }
    }

    hvd::sparse_rows<float> vector_rows, context_rows;
    double loss = 0;
    double pairs = 0;

    std::vector<float>& vectors() { return vectors_; }
    std::vector<float>& contexts() { return contexts_; }
    std::vector<float>& vectors_gradient() { return vectors_table_; }
    std::vector<float>& contexts_gradient() { return contexts_table_; }
    std::size_t dimensions() const { return settings_.dimensions; }

    /// Returns the words whose vectors have the most similar direction.
    std::vector<std::size_t> neighbours(std::size_t word, std::size_t count) const {
        std::vector<std::pair<double, std::size_t>> all;
        for (std::size_t other = 0; other < corpus_.words.size(); ++other)
            if (other != word) all.emplace_back(-cosine(word, other), other);
        count = std::min(count, all.size());
        std::ranges::partial_sort(all, all.begin() + static_cast<std::ptrdiff_t>(count));
        std::vector<std::size_t> nearest;
        for (std::size_t i = 0; i < count; ++i) nearest.push_back(all[i].second);
        return nearest;
    }

private:
    bool keeps(std::uint32_t word, random_numbers& random) const {
        const double share = corpus_.counts[word] / static_cast<double>(corpus_.text.size());
        return random.uniform() < std::sqrt(settings_.frequent / share);
    }

    void learn(std::size_t place, random_numbers& random) {
        const std::size_t n = settings_.dimensions;
        const std::uint32_t word = corpus_.text[place];
        const std::size_t reach = 1 + random.next() % static_cast<std::uint64_t>(settings_.window);
        const std::size_t first = place - std::min(place, reach);
        const std::size_t last = std::min(place + reach, corpus_.text.size() - 1);
        std::vector<float> change(n);
        for (std::size_t near = first; near <= last; ++near) {
            if (near == place) continue;
            learn_pair(word, corpus_.text[near], true, change);
            for (int k = 0; k < settings_.negatives; ++k)
                learn_pair(word, drawn(random), false, change);
            ++pairs;
        }
        vector_rows.indices.push_back(word);
        vector_rows.values.insert(vector_rows.values.end(), change.begin(), change.end());
    }

    void learn_pair(std::size_t word, std::size_t context, bool real, std::vector<float>& change) {
        const std::size_t n = settings_.dimensions;
        const float* const v = &vectors_[word * n];
        const float* const c = &contexts_[context * n];
        float product = 0;
        for (std::size_t k = 0; k < n; ++k) product += v[k] * c[k];
        const float likely = 1 / (1 + std::exp(-product));
        loss -= std::log(std::max(real ? likely : 1 - likely, 1e-7f));
        const float gradient = likely - (real ? 1.0f : 0.0f);
        context_rows.indices.push_back(static_cast<std::int64_t>(context));
        for (std::size_t k = 0; k < n; ++k) {
            change[k] += gradient * c[k];
            context_rows.values.push_back(gradient * v[k]);
        }
    }

    std::size_t drawn(random_numbers& random) const {
        const double at = random.uniform() * cumulated_.back();
        const auto found = std::ranges::upper_bound(cumulated_, at) - cumulated_.begin();
        return std::min(static_cast<std::size_t>(found), cumulated_.size() - 1);
    }

    double cosine(std::size_t a, std::size_t b) const {
        const std::size_t n = settings_.dimensions;
        double ab = 0, aa = 1e-30, bb = 1e-30;
        for (std::size_t k = 0; k < n; ++k) {
            const double x = vectors_[a * n + k], y = vectors_[b * n + k];
            ab += x * y;
            aa += x * x;
            bb += y * y;
        }
        return ab / std::sqrt(aa * bb);
    }

    const corpus& corpus_;
    settings settings_;
    std::vector<float> vectors_, contexts_;
    std::vector<float> vectors_table_, contexts_table_;
    std::vector<double> cumulated_;
};

}  // namespace word2vec
