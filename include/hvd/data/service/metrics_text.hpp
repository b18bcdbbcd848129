// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "../../core/error.hpp"
#include "../../core/lean/atomic.hpp"
#include "../../observe/json_text.hpp"

namespace hvd::inline v0::detail {

// Counts of one process of a data service, in Prometheus's text format 0.0.4, with the names and
// the files that `prometheus_metrics` gives to those of ranks. All have the same label.
class metrics_text {
public:
    metrics_text(std::string prefix, std::string_view label, int value)
        : prefix_(std::move(prefix)),
          label_("{" + std::string(label) + "=\"" + std::to_string(value) + "\"} ") {}

    // A number that grows as long as the process lives.
    template <class N>
    metrics_text& counter(std::string_view name, std::string_view help, N value) {
        return add(std::string(name) + "_total", help, "counter", value);
    }
    template <class N>
    metrics_text& gauge(std::string_view name, std::string_view help, N value) {
        return add(std::string(name), help, "gauge", value);
    }

    const std::string& text() const { return text_; }

    // A reader finds the old file or the new one, whole. The collector does not read the name under
    // which the new one is written first.
    // @throws usage_error naming the file and the system's reason
    void write(const std::string& file, int rank) const {
        static atomic<unsigned> written{0};
        const std::string temporary =
            file + ".tmp" + std::to_string(::getpid()) + "_" + std::to_string(written.add(1));
        std::FILE* const out = std::fopen(temporary.c_str(), "we");
        const bool is_whole =
            out != nullptr && std::fwrite(text_.data(), 1, text_.size(), out) == text_.size();
        const bool is_there = out != nullptr && std::fclose(out) == 0 && is_whole;
        if (is_there && std::rename(temporary.c_str(), file.c_str()) == 0) return;
        const int reason = errno;
        if (out != nullptr) std::remove(temporary.c_str());
        throw usage_error(rank, detail::text("hvd: '", std::string_view(file),
                                             "' cannot be written: ", std::strerror(reason)));
    }

private:
    template <class N>
    metrics_text& add(const std::string& name, std::string_view help, std::string_view type,
                      N value) {
        const std::string full = prefix_ + name;
        text_ += "# HELP " + full + " ";
        text_ += help;
        text_ += "\n# TYPE " + full + " ";
        text_ += type;
        text_ += "\n" + full + label_;
        append_json_number(text_, value);
        text_ += "\n";
        return *this;
    }

    std::string prefix_, label_, text_;
};

}  // namespace hvd::inline v0::detail
