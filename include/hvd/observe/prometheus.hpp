// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <string>
#include <utility>
#include <vector>

#include "counts.hpp"
#include "prometheus_text.hpp"

namespace hvd::inline v0 {

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
    std::string text() const { return text_.text(); }

    /// Writes the file at once: a reader finds the old one or the new one, whole. The new one is
    /// written beside it first, under a name that the collector does not read, and then renamed.
    /// @throws hvd::usage_error naming the file and the system's reason
    void write(const std::string& file) const { text_.write(file, rank_); }

private:
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
        const std::string labels = detail::prometheus_text::labels_text(own);
        detail::each_count(counts, [&](const char* name, const char* help, detail::count_kind kind,
                                       auto value) {
            if (!text_.add(prefix + std::string(name), help, kind, labels, value))
                throw usage_error(
                    rank_, detail::text("hvd: rank ", rank_, " adds two counts ",
                                        std::string_view(name), std::string_view(labels),
                                        ": give one of them a label, or make the metrics anew"));
        });
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

    int rank_ = -1;
    detail::prometheus_text text_;
};

}  // namespace hvd::inline v0
