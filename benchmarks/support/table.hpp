// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <optional>
#include <string>

#include "line_time.hpp"
#include "measure.hpp"
#include "program.hpp"

namespace bench {

/// The bytes that a collective moves: the factors that nccl-tests publishes, and the least that
/// memory has to read and write for all ranks of a node together.
struct traffic {
    double bus;    // busbw = algbw * bus
    double moved;  // bytes read and written = size * moved
};

inline traffic traffic_of(const std::string& collective, int ranks) {
    const double n = ranks, part = (n - 1) / n;
    if (collective == "all_reduce") return {2 * part, 2 * n};
    if (collective == "all_gather") return {part, 2 * n};
    if (collective == "reduce_scatter") return {part, n + 1};
    if (collective == "alltoall") return {part, 2 * n};
    if (collective == "reduce") return {1, n + 1};
    if (collective == "broadcast") return {1, 2 * (n - 1)};
    return {part, 2};  // gather and scatter move the root's tensor once
}

/// A line of nccl-tests' table, with the provider, the kind of memory and the comparison.
struct line {
    std::string collective, path, type, op;
    std::size_t size = 0, count = 0;
    int root = -1;
    std::optional<double> line_time{};  // of the cache line, in seconds; 0: unknown
    std::optional<timing> out_of_place{}, in_place{};
    std::optional<double> ratio_out_of_place{},
        ratio_in_place{};  // the peer's time over this one's
};

inline std::string heading() {
    return fmt::format(
        "{:>12} {:>12} {:>8} {:>7} {:>4}  {:>9} {:>7} {:>7} {:>6} {:>6}  {:>9} {:>7} {:>7} {:>6} "
        "{:>6}  {:>9} {:>9} {:>6}  {}\n"
        "{:>12} {:>12} {:>8} {:>7} {:>4}  {:>9} {:>7} {:>7} {:>6} {:>6}  {:>9} {:>7} {:>7} {:>6} "
        "{:>6}  {:>9} {:>9} {:>6}\n",
        "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "x peer",
        "time", "algbw", "busbw", "#wrong", "x peer", "p50", "p99", "limit", "path", "(B)",
        "(elements)", "", "", "", "out: us", "GB/s", "GB/s", "", "", "in: us", "GB/s", "GB/s", "",
        "", "(us)", "(us)", "(%)");
}

inline json block(const timing& t, double size, const traffic& moves, std::optional<double> ratio,
                  double limit) {
    json result{{"time", t.time * 1e6},
                {"min", t.least * 1e6},
                {"max", t.most * 1e6},
                {"algbw", size / t.time / 1e9},
                {"busbw", size / t.time / 1e9 * moves.bus},
                {"wrong", t.wrong},
                {"p50", t.p50 * 1e6},
                {"p99", t.p99 * 1e6},
                {"rounds", t.rounds}};
    if (limit > 0) result["of_limit"] = size * moves.moved / t.time / limit;
    if (ratio) result["ratio"] = *ratio;
    return result;
}

inline std::string columns(const json& b) {
    if (b.is_null()) return fmt::format("{:>9} {:>7} {:>7} {:>6} {:>6}", "-", "-", "-", "-", "-");
    return fmt::format("{:>9.2f} {:>7.2f} {:>7.2f} {:>6} {:>6}", b["time"].get<double>(),
                       b["algbw"].get<double>(), b["busbw"].get<double>(),
                       b["wrong"].get<std::size_t>(),
                       b.contains("ratio") ? fmt::format("{:.2f}", b["ratio"].get<double>()) : "-");
}

/// Prints and keeps one line. `limit` is the machine's, in bytes per second, or 0. p50, p99 and the
/// share of the limit are those in place if there is such a call.
template <class Comm>
void add_line(report<Comm>& out, const line& l, int ranks, double limit) {
    const traffic moves = traffic_of(l.collective, ranks);
    json row{{"collective", l.collective},
             {"path", l.path},
             {"size", l.size},
             {"count", l.count},
             {"type", l.type},
             {"redop", l.op},
             {"root", l.root},
             {"out_of_place", nullptr},
             {"in_place", nullptr}};
    if (l.line_time) {
        row["line_ns"] = *l.line_time * 1e9;
        row["cores"] = distance_of(*l.line_time);
    }
    if (l.out_of_place)
        row["out_of_place"] =
            block(*l.out_of_place, double(l.size), moves, l.ratio_out_of_place, limit);
    if (l.in_place)
        row["in_place"] = block(*l.in_place, double(l.size), moves, l.ratio_in_place, limit);
    const json& shown = l.in_place ? row["in_place"] : row["out_of_place"];
    out.print("{:>12} {:>12} {:>8} {:>7} {:>4}  {}  {}  {:>9.2f} {:>9.2f} {:>6}  {}\n", l.size,
              l.count, l.type, l.op, l.root, columns(row["out_of_place"]), columns(row["in_place"]),
              shown["p50"].template get<double>(), shown["p99"].template get<double>(),
              shown.contains("of_limit")
                  ? fmt::format("{:.0f}", 100 * shown["of_limit"].template get<double>())
                  : "-",
              l.path);
    out.add(std::move(row));
}

}  // namespace bench
