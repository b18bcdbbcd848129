// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace bench {

using json = nlohmann::ordered_json;

/// A cell of CSV: in quotes where it has to be.
inline std::string csv_cell(const json& value) {
    if (value.is_null()) return "";
    std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (text.find_first_of(",\"\n") == std::string::npos) return text;
    for (std::size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2)
        text.insert(at, 1, '"');
    return '"' + text + '"';
}

/// A row without blocks: {"in_place": {"time": 1}} is {"in_place.time": 1}. A block that a row has
/// not got leaves no column.
inline void flatten(const json& row, const std::string& above, json& flat) {
    for (const auto& [name, value] : row.items()) {
        if (value.is_object()) flatten(value, above + name + '.', flat);
        else if (!value.is_null()) flat[above + name] = value;
    }
}

/// The rows of a benchmark as CSV. Its columns are the names of all rows, in their order.
inline std::string csv_of(const json& rows) {
    std::vector<json> flat;
    std::vector<std::string> columns;
    for (const json& row : rows) {
        flat.emplace_back(json::object());
        flatten(row, "", flat.back());
        for (const auto& [name, value] : flat.back().items())
            if (std::ranges::find(columns, name) == columns.end()) columns.push_back(name);
    }
    std::string text = fmt::format("{}\n", fmt::join(columns, ","));
    for (const json& row : flat)
        for (const std::string& column : columns)
            text += csv_cell(row.value(column, json())) + (column == columns.back() ? "\n" : ",");
    return text;
}

/// A heading like that of the OSU micro-benchmarks, and the loop behind its columns.
inline std::string osu_heading(const json& document, const json& row, const std::string& place) {
    const auto text = [](const json& from, const char* name) {
        return from[name].get<std::string>();
    };
    return fmt::format(
        "\n# OSU-like: {}, {} of {} {}, {}, {} ranks ({})\n"
        "# The loop: rounds of calls that follow each other without a barrier, all paths in turns; "
        "a round gives each rank the mean of its calls.\n"
        "# Avg, Min and Max are over the ranks of a round; each is its median over the rounds.\n"
        "{:<12}{:>18}{:>18}{:>18}{:>12}{:>18}\n",
        text(row, "path"), text(row, "collective"), text(row, "type"),
        place == "in_place" ? "in place" : "out of place", text(row, "redop"),
        document["ranks"].get<int>(), text(document, "backend"), "# Size", "Avg Latency(us)",
        "Min Latency(us)", "Max Latency(us)", "Rounds", "Bandwidth (MB/s)");
}

/// Tables like those of the OSU micro-benchmarks: one for each collective, path and place.
inline std::string osu_tables(const json& document) {
    std::vector<std::string> keys, tables;
    for (const json& row : document["rows"])
        for (const std::string place : {"out_of_place", "in_place"}) {
            const json& b = row[place];
            if (b.is_null()) continue;
            std::string key = fmt::format("{} {} {} {}", row["collective"].dump(),
                                          row["path"].dump(), row["type"].dump(), place);
            const auto at = std::size_t(std::ranges::find(keys, key) - keys.begin());
            if (at == keys.size()) {
                keys.push_back(std::move(key));
                tables.push_back(osu_heading(document, row, place));
            }
            const auto size = row["size"].get<double>(), time = b["time"].get<double>();
            tables[at] += fmt::format("{:<12}{:>18.2f}{:>18.2f}{:>18.2f}{:>12}{:>18.2f}\n", size,
                                      time, b["min"].get<double>(), b["max"].get<double>(),
                                      b["rounds"].get<int>(), size / time);
        }
    return fmt::format("{}", fmt::join(tables, ""));
}

}  // namespace bench
