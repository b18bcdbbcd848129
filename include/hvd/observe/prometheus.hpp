// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../core/lean/atomic.hpp"
#include "counts.hpp"
#include "json_text.hpp"

namespace hvd::inline v0 {

/// A label of all lines of a file for Prometheus: a name and a value.
using metric_label = std::pair<std::string, std::string>;

/// Counts of a rank as a text file for Prometheus, which node_exporter's textfile collector reads.
/// Each line has the label `rank`, and the labels that the caller gives, so that the communicators
/// and engines of a rank can stand in one file. Each rank writes a file of its own.
/// @snippet tests/docs/snippets.cpp prometheus
class prometheus_metrics {
public:
    /// Adds the counts of a communicator: `hvd_collective_…`, with labels `collective` and `path`,
    /// and `hvd_late_…` for each rank that has come last, which the label `late_rank` names.
    /// @throws hvd::usage_error for a label that has no valid name, or one that hvd gives itself,
    /// and for counts with the same labels as earlier ones.
    prometheus_metrics& add(const statistics& s, const std::vector<metric_label>& labels = {}) {
        for (const call_statistics& e : s.by_path())
            add_counts("hvd_collective_", e, s.rank(), labels,
                       {{"collective", std::string(e.collective)}, {"path", name_of(e.path)}});
        for (std::size_t r = 0; r < s.lateness().size(); ++r)
            add_counts("hvd_late_", s.lateness()[r], s.rank(), labels,
                       {{"late_rank", std::to_string(r)}});
        return *this;
    }
    /// Adds the counts of an engine: `hvd_engine_…`.
    /// @throws hvd::usage_error as above
    prometheus_metrics& add(const engine_statistics& s,
                            const std::vector<metric_label>& labels = {}) {
        add_counts("hvd_engine_", s, s.rank, labels, {});
        return *this;
    }

    /// Returns the file's text, in Prometheus's text format 0.0.4.
    std::string text() const {
        std::string out;
        for (const family& f : families_) {
            out += "# HELP " + f.name + " " + f.help + "\n# TYPE " + f.name + " " + f.type + "\n";
            for (const sample& s : f.samples) out += f.name + s.labels + " " + s.value + "\n";
        }
        return out;
    }

    /// Writes the file at once: a reader finds the old one or the new one, whole. The new one is
    /// written beside it first, under a name that the collector does not read, and then renamed.
    /// @throws hvd::usage_error naming the file and the system's reason
    void write(const std::string& file) const {
        const std::string all = text();
        std::string temporary;
        std::FILE* out = nullptr;
        do {
            temporary = file + ".tmp" + std::to_string(::getpid()) + "_" + std::to_string(number());
            out = std::fopen(temporary.c_str(), "wxe");
        } while (out == nullptr && errno == EEXIST);
        if (out == nullptr) refuse(file, errno);
        const bool is_whole = std::fwrite(all.data(), 1, all.size(), out) == all.size();
        const bool is_there = std::fclose(out) == 0 && is_whole;
        if (is_there && std::rename(temporary.c_str(), file.c_str()) == 0) return;
        const int reason = errno;
        std::remove(temporary.c_str());
        refuse(file, reason);
    }

private:
    struct sample {
        std::string labels, value;
    };
    struct family {
        std::string name, help, type;
        std::vector<sample> samples;
    };

    // A number that no other file of this process has.
    static unsigned number() {
        static detail::atomic<unsigned> written{0};
        return written.add(1);
    }

    [[noreturn]] void refuse(const std::string& file, int reason) const {
        throw usage_error(rank_, detail::text("hvd: '", std::string_view(file),
                                              "' cannot be written: ", std::strerror(reason)));
    }

    template <class Counts>
    void add_counts(const char* prefix, const Counts& counts, int rank,
                    const std::vector<metric_label>& given, std::vector<metric_label> own) {
        rank_ = rank;
        own.insert(own.begin(), {"rank", std::to_string(rank)});
        for (const metric_label& l : given) {
            check_label(l.first);
            for (const metric_label& other : own)
                if (other.first == l.first) refuse_label(l.first, "stands there already");
            own.push_back(l);
        }
        const std::string labels = labels_text(own);
        using detail::count_kind;
        detail::each_count(
            counts, [&](const char* name, const char* help, count_kind kind, auto value) {
                const bool grows = kind == count_kind::counter;
                family& f = family_of(prefix + std::string(name) + (grows ? "_total" : ""), help,
                                      grows ? "counter" : "gauge");
                add_sample(f, labels, value);
            });
    }

    family& family_of(const std::string& name, const char* help, const char* type) {
        for (family& f : families_)
            if (f.name == name) return f;
        return families_.emplace_back(family{name, help, type, {}});
    }

    template <class N>
    void add_sample(family& f, const std::string& labels, N value) {
        for (const sample& s : f.samples)
            if (s.labels == labels)
                throw usage_error(
                    rank_, detail::text("hvd: rank ", rank_, " adds two counts ",
                                        std::string_view(f.name), std::string_view(labels),
                                        ": give one of them a label, or make the metrics anew"));
        std::string digits;
        detail::append_json_number(digits, value);
        f.samples.push_back({labels, digits});
    }

    // The names of labels that Prometheus takes; those with two underscores are its own.
    void check_label(const std::string& name) const {
        bool valid =
            !name.empty() && !(name[0] >= '0' && name[0] <= '9') && name.compare(0, 2, "__") != 0;
        for (const char c : name)
            valid = valid && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                              (c >= '0' && c <= '9') || c == '_');
        if (!valid)
            refuse_label(name,
                         "has no valid name: letters, digits and underscores, no digit first "
                         "and not two underscores");
    }
    [[noreturn]] void refuse_label(const std::string& name, const char* why) const {
        throw usage_error(rank_, detail::text("hvd: rank ", rank_, ": the label '",
                                              std::string_view(name), "' ", why));
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
    static void append_value(std::string& out, std::string_view value) {
        while (!value.empty()) {
            const std::size_t bytes = detail::utf8_bytes(value);
            const char c = value.front();
            if (c == '\\' || c == '"') (out += '\\') += c;
            else if (c == '\n') out += "\\n";
            else if (bytes == 0) out += "\xEF\xBF\xBD";
            else out += value.substr(0, bytes);
            value.remove_prefix(bytes > 0 ? bytes : 1);
        }
    }

    int rank_ = -1;
    std::vector<family> families_;
};

}  // namespace hvd::inline v0
