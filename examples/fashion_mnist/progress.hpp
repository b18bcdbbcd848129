// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>

#include "loss.hpp"

namespace fashion_mnist {

/// The clock of all measurements here.
class stopwatch {
public:
    double seconds() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }

private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

inline bool somebody_watches() { return isatty(STDERR_FILENO) != 0; }

/// One line on stderr that fills as an epoch advances. It is silent unless `shown`.
class progress_bar {
public:
    progress_bar(bool shown, int epoch, int epochs, std::size_t images)
        : shown_(shown), images_(images), title_(fmt::format("epoch {}/{}", epoch, epochs)) {}

    void advance(std::size_t done) {
        if (!shown_ || watch_.seconds() < next_) return;
        next_ = watch_.seconds() + 0.1;
        const std::size_t filled = width * done / images_;
        fmt::print(stderr, "\r{} [{:=<{}}{:{}}] {:3} %, {:.0f} images/s ", title_, "", filled, "",
                   width - filled, 100 * done / images_,
                   static_cast<double>(done) / watch_.seconds());
        std::fflush(stderr);
    }

    void finish(const score& score, double rate) {
        if (!shown_) return;
        fmt::print(stderr, "\r{}: loss {:.4f}, training accuracy {:.2f} %, {:.0f} images/s{:20}\n",
                   title_, score.mean_loss(), 100 * score.accuracy(), rate, "");
    }

private:
    static constexpr std::size_t width = 30;

    bool shown_;
    std::size_t images_;
    std::string title_;
    stopwatch watch_;
    double next_ = 0;
};

}  // namespace fashion_mnist
