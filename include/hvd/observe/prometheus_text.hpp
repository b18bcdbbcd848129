// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../core/lean/atomic.hpp"
#include "json_text.hpp"

namespace hvd::inline v0 {

/// A label of all lines of a file for Prometheus: a name and a value.
using metric_label = std::pair<std::string, std::string>;

}  // namespace hvd::inline v0

namespace hvd::inline v0::detail {

// A number that grows as long as the program runs, or one that may fall.
enum class count_kind { counter, gauge };

// A text in Prometheus's format 0.0.4, the only writer of it. A family has its help and type once,
// and below them all its samples, each with other labels.
class prometheus_text {
public:
    // Returns false if the text has a sample of that name with these labels. A counter's name ends
    // in `_total`.
    template <class N>
    bool add(std::string name, std::string_view help, count_kind kind, const std::string& labels,
             N value) {
        if (kind == count_kind::counter) name += "_total";
        family& f = family_of(std::move(name), help, kind);
        for (const sample& s : f.samples)
            if (s.labels == labels) return false;
        std::string digits;
        append_json_number(digits, value);
        f.samples.push_back({labels, digits});
        return true;
    }

    std::string text() const {
        std::string out;
        for (const family& f : families_) {
            const char* const type = f.kind == count_kind::counter ? "counter" : "gauge";
            out += "# HELP " + f.name + " " + f.help + "\n# TYPE " + f.name + " " + type + "\n";
            for (const sample& s : f.samples) out += f.name + s.labels + " " + s.value + "\n";
        }
        return out;
    }

    // Writes the file at once: a reader finds the old one or the new one, whole. The new one is
    // written beside it first, under a name that the collector does not read, and then renamed.
    // @throws usage_error naming the file and the system's reason
    void write(const std::string& file, int rank) const {
        const std::string all = text();
        std::string temporary;
        std::FILE* out = nullptr;
        do {
            temporary = file + ".tmp" + std::to_string(::getpid()) + "_" + std::to_string(number());
            out = std::fopen(temporary.c_str(), "wxe");
        } while (out == nullptr && errno == EEXIST);
        if (out == nullptr) refuse(file, errno, rank);
        const bool is_whole = std::fwrite(all.data(), 1, all.size(), out) == all.size();
        const bool is_there = std::fclose(out) == 0 && is_whole;
        if (is_there && std::rename(temporary.c_str(), file.c_str()) == 0) return;
        const int reason = errno;
        std::remove(temporary.c_str());
        refuse(file, reason, rank);
    }

    static std::string labels_text(const std::vector<metric_label>& labels) {
        std::string out;
        for (const auto& [name, value] : labels) {
            out += (out.empty() ? "{" : ",") + name + "=\"";
            append_value(out, value);
            out += "\"";
        }
        return out + "}";
    }

private:
    struct sample {
        std::string labels, value;
    };
    struct family {
        std::string name, help;
        count_kind kind;
        std::vector<sample> samples;
    };

    // A number that no other file of this process has.
    static unsigned number() {
        static atomic<unsigned> written{0};
        return written.add(1);
    }

    [[noreturn]] static void refuse(const std::string& file, int reason, int rank) {
        throw usage_error(rank, detail::text("hvd: '", std::string_view(file),
                                             "' cannot be written: ", std::strerror(reason)));
    }

    family& family_of(std::string name, std::string_view help, count_kind kind) {
        for (family& f : families_)
            if (f.name == name) return f;
        return families_.emplace_back(family{std::move(name), std::string(help), kind, {}});
    }

    static void append_value(std::string& out, std::string_view value) {
        while (!value.empty()) {
            const std::size_t bytes = utf8_bytes(value);
            const char c = value.front();
            if (c == '\\' || c == '"') (out += '\\') += c;
            else if (c == '\n') out += "\\n";
            else if (bytes == 0) out += "\xEF\xBF\xBD";
            else out += value.substr(0, bytes);
            value.remove_prefix(bytes > 0 ? bytes : 1);
        }
    }

    std::vector<family> families_;
};

// Counts whose names begin alike and that have a label: those of a process of a data service. Some
// have a second one.
class prometheus_group {
public:
    prometheus_group(std::string prefix, std::string label, int value)
        : prefix_(std::move(prefix)), label_(std::move(label), std::to_string(value)) {
        labels_ = prometheus_text::labels_text({label_});
    }

    // The counts that follow have it.
    prometheus_group& with(const std::string& label, int value) {
        labels_ = prometheus_text::labels_text({label_, {label, std::to_string(value)}});
        return *this;
    }

    template <class N>
    prometheus_group& counter(const std::string& name, std::string_view help, N value) {
        text_.add(prefix_ + name, help, count_kind::counter, labels_, value);
        return *this;
    }
    template <class N>
    prometheus_group& gauge(const std::string& name, std::string_view help, N value) {
        text_.add(prefix_ + name, help, count_kind::gauge, labels_, value);
        return *this;
    }

    std::string text() const { return text_.text(); }
    void write(const std::string& file, int rank) const { text_.write(file, rank); }

private:
    std::string prefix_;
    metric_label label_;
    std::string labels_;
    prometheus_text text_;
};

}  // namespace hvd::inline v0::detail
