// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

// Results of hvd::autotune in a JSON file, from one run to the next. It needs yaml-cpp.

#include <array>
#include <cerrno>
#include <charconv>

#include "../engine/tuning/autotune.hpp"
#include "../engine/tuning/machine.hpp"
#include "../train/checkpoint/atomic_file.hpp"
#include "options_file.hpp"

namespace hvd::inline v0 {

/// A JSON file that keeps the results of searches, each under its machine and set of tensors. A
/// file that does not exist is empty.
/// @snippet tests/interop/autotune_file.cpp autotune_file_by_hand
class autotune_file {
public:
    /// A result and the key under which it stands.
    struct entry {
        tuning_key key;
        autotune_result result;
    };

    /// Reads the file.
    /// @throws hvd::usage_error, with file, line and value, for a file that can't be read or is
    /// no such file.
    explicit autotune_file(std::string path);

    /// The result of a search with that key, null if there is none.
    const autotune_result* find(const tuning_key& key) const {
        for (const entry& e : entries_)
            if (e.key == key) return &e.result;
        return nullptr;
    }
    /// Keeps a result, in place of the one with the same key.
    void put(const tuning_key& key, const autotune_result& result) {
        std::erase_if(entries_, [&](const entry& e) { return e.key == key; });
        entries_.push_back({key, result});
    }
    /// Writes the file: a reader gets the old one or the new one, whenever it looks.
    /// @throws hvd::usage_error if it can't be written.
    void write() const;

    /// All results, those of other machines, too.
    const std::vector<entry>& entries() const noexcept { return entries_; }

private:
    std::string path_;
    std::vector<entry> entries_;
};

namespace detail {

template <class Number>
std::string json_number(Number value, int base = 10) {
    std::array<char, 64> text;
    std::to_chars_result end{};
    if constexpr (std::is_floating_point_v<Number>)
        end = std::to_chars(text.data(), text.data() + text.size(), value);
    else end = std::to_chars(text.data(), text.data() + text.size(), value, base);
    return {text.data(), end.ptr};
}

inline std::string json_string(std::string_view value) {
    std::string quoted = "\"";
    for (const char c : value) {
        if (c == '"' || c == '\\') quoted += '\\';
        const auto code = static_cast<unsigned char>(c);
        if (code >= 0x20) quoted += c;
        else quoted += std::string("\\u00") + (code < 16 ? "0" : "") + json_number(int(code), 16);
    }
    return quoted + '"';
}

inline std::string json_of(const autotune_file::entry& e) {
    std::string all = "  {";
    const auto add = [&](const char* name, const std::string& value) {
        all += (all.size() > 3 ? ", " : "") + json_string(name) + ": " + value;
    };
    add("processor", json_string(e.key.processor));
    add("ranks", json_number(e.key.ranks));
    add("ranks_per_node", json_number(e.key.ranks_per_node));
    add("backend", json_string(e.key.backend));
    add("engine", e.key.of_engine ? "true" : "false");
    add("tensors", json_string(json_number(e.key.tensors, 16)));
    add("seconds", json_number(e.result.seconds));
    add("seconds_before", json_number(e.result.seconds_before));
    add("steps", json_number(e.result.steps));
    std::string thresholds;
    for (const setting& s : settings_of<engine_tuning>::table)
        thresholds += std::string(thresholds.empty() ? "" : ",") + "\n    " + json_string(s.key) +
                      ": " + json_string(value_text(s, &e.result.chosen));
    add("thresholds", "{" + thresholds + "}");
    return all + "}";
}

// Reads the maps of the file. Each key stands once, and none is unknown.
class autotune_file_reader : yaml_text {
public:
    using yaml_text::yaml_text;

    std::vector<autotune_file::entry> read() const {
        const YAML::Node document = load();
        std::vector<autotune_file::entry> entries;
        if (document.IsNull()) refuse(YAML::Mark(), "the file is empty");
        for_each_member(document, [&](const std::string& key, const YAML::Node& value) {
            if (key != "results") return false;
            if (!value.IsSequence()) refuse(value.Mark(), "results is no list");
            for (const YAML::Node& item : value) {
                entries.push_back(read_entry(item));
                for (std::size_t i = 0; i + 1 < entries.size(); ++i)
                    if (entries[i].key == entries.back().key)
                        refuse(item.Mark(), "a result for the same machine and tensors stands ",
                               "above");
            }
            return true;
        });
        return entries;
    }

private:
    // `take` returns false for a key that it does not know.
    template <class Take>
    void for_each_member(const YAML::Node& map, Take take) const {
        if (!map.IsMap()) refuse(map.Mark(), "there is no map");
        std::vector<std::string> seen;
        for (const auto& item : map) {
            const YAML::Node key = item.first;
            if (!key.IsScalar()) refuse(key.Mark(), "a key is no text");
            if (std::count(seen.begin(), seen.end(), key.Scalar()) > 0)
                refuse(key.Mark(), key.Scalar(), " stands twice");
            seen.push_back(key.Scalar());
            if (!take(key.Scalar(), item.second))
                refuse(key.Mark(), "'", key.Scalar(), "' is unknown here");
        }
    }

    autotune_file::entry read_entry(const YAML::Node& map) const {
        autotune_file::entry e;
        int found = 0;
        for_each_member(map, [&](const std::string& key, const YAML::Node& value) {
            ++found;
            if (key == "processor") e.key.processor = scalar(key, value);
            else if (key == "ranks") e.key.ranks = number(key, value, 1);
            else if (key == "ranks_per_node") e.key.ranks_per_node = number(key, value, 1);
            else if (key == "backend") e.key.backend = scalar(key, value);
            else if (key == "engine") e.key.of_engine = flag(key, value);
            else if (key == "tensors") e.key.tensors = hex(key, value);
            else if (key == "seconds") e.result.seconds = seconds(key, value);
            else if (key == "seconds_before") e.result.seconds_before = seconds(key, value);
            else if (key == "steps") e.result.steps = number(key, value, 0);
            else if (key == "thresholds") e.result.chosen = read_thresholds(value);
            else return false;
            return true;
        });
        if (found < 10) refuse(map.Mark(), "a result has ", found, " of its 10 members");
        return e;
    }

    engine_tuning read_thresholds(const YAML::Node& map) const {
        engine_tuning t;
        for_each_member(map, [&](const std::string& key, const YAML::Node& value) {
            for (const setting& s : settings_of<engine_tuning>::table) {
                if (key != s.key) continue;
                if (!read_setting(s, scalar(key, value), &t))
                    refuse_value(key, value, permitted(s));
                return true;
            }
            return false;
        });
        return t;
    }

    std::string scalar(const std::string& key, const YAML::Node& value) const {
        if (!value.IsScalar()) refuse(value.Mark(), key, " has no single value");
        return value.Scalar();
    }
    template <class Number, class... Base>
    bool parse(const std::string& text, Number& number, Base... base) const {
        const char* const end = text.data() + text.size();
        const auto [at, failure] = std::from_chars(text.data(), end, number, base...);
        return failure == std::errc() && at == end;
    }
    int number(const std::string& key, const YAML::Node& value, int least) const {
        int n = 0;
        if (!parse(scalar(key, value), n) || n < least)
            refuse_value(key, value, std::string(range_text(std::uint64_t(least), INT32_MAX, 1)));
        return n;
    }
    double seconds(const std::string& key, const YAML::Node& value) const {
        double n = 0;
        if (!parse(scalar(key, value), n) || !(n >= 0) || n > 1e9)
            refuse_value(key, value, "seconds from 0 on");
        return n;
    }
    std::uint64_t hex(const std::string& key, const YAML::Node& value) const {
        std::uint64_t n = 0;
        if (!parse(scalar(key, value), n, 16)) refuse_value(key, value, "a hexadecimal number");
        return n;
    }
    bool flag(const std::string& key, const YAML::Node& value) const {
        const std::string text = scalar(key, value);
        if (text != "true" && text != "false") refuse_value(key, value, "true or false");
        return text == "true";
    }
    [[noreturn]] void refuse_value(const std::string& key, const YAML::Node& value,
                                   const std::string& takes) const {
        refuse(value.Mark(), key, " is '", value.IsScalar() ? value.Scalar() : "", "'; it takes ",
               takes);
    }
};

// Rank 0 alone reads the file, if it has one; it tells the others its result, or why it can't be
// read.
inline std::optional<engine_tuning> known_on_rank_0(tuned_target& target, const std::string& path,
                                                    const tuning_key& key) {
    constexpr std::size_t settings = std::size(settings_of<engine_tuning>::table);
    constexpr std::size_t words = 64;
    enum : std::int64_t { nothing, found, failed };
    std::vector<std::int64_t> mine(1 + settings + words);
    std::exception_ptr failure;
    if (target.rank() == 0 && !path.empty()) try {
            const autotune_file file(path);
            if (const autotune_result* const known = file.find(key)) {
                mine[0] = found;
                std::size_t at = 1;
                for (const setting& s : settings_of<engine_tuning>::table)
                    mine[at++] = knob(s).get(known->chosen);
            }
        } catch (const error& e) {
            failure = std::current_exception();
            mine[0] = failed;
            std::memcpy(&mine[1 + settings], e.what(),
                        std::min(std::strlen(e.what()), words * sizeof(std::int64_t) - 1));
        }
    const std::vector<std::int64_t> all = target.numbers_of_all(mine);
    if (failure) std::rethrow_exception(failure);
    if (all[0] == failed)
        throw peer_error(target.rank(),
                         text("hvd: an autotune on rank ", target.rank(),
                              ": rank 0: ", reinterpret_cast<const char*>(&all[1 + settings])),
                         {0});
    if (all[0] == nothing) return {};
    engine_tuning known = target.tuned();
    std::size_t at = 1;
    for (const setting& s : settings_of<engine_tuning>::table)
        known = knob(s).with(known, all[at++]);
    return known;
}

// The training goes on if the file can't be written.
inline void keep_result(const std::string& path, const tuning_key& key,
                        const autotune_result& result) {
    try {
        autotune_file file(path);
        file.put(key, result);
        file.write();
    } catch (const error& e) {
        write_line(text("hvd: the result of an autotune is not kept: ", e.what()));
    }
}

template <class Target>
autotune tuned_by_file(Target& holder, tuned_target& target, const tuning_key& key,
                       autotune_options options) {
    std::string path = std::exchange(options.file, std::string());
    if (!options.enabled) path.clear();
    if (const auto known = known_on_rank_0(target, path, key)) options.known = known;
    if (!options.known && target.rank() == 0 && !path.empty())
        options.finished = [path, key,
                            then = std::move(options.finished)](const autotune_result& result) {
            keep_result(path, key, result);
            if (then) then(result);
        };
    return autotune(holder, std::move(options));
}

}  // namespace detail

inline autotune_file::autotune_file(std::string path) : path_(std::move(path)) {
    std::optional<std::string> text = detail::text_of_file(path_);
    if (text) entries_ = detail::autotune_file_reader(std::move(*text), path_).read();
    else if (errno != ENOENT)
        throw usage_error(-1, detail::text("hvd: the file '", path_, "' can't be read"));
}

inline void autotune_file::write() const {
    std::string all = "{\"results\": [";
    for (std::size_t i = 0; i < entries_.size(); ++i)
        all += (i > 0 ? ",\n" : "\n") + detail::json_of(entries_[i]);
    all += "\n]}\n";
    try {
        detail::atomic_file file(path_);
        file.write(std::as_bytes(std::span(all.data(), all.size())));
        file.commit();
    } catch (const checkpoint_error& e) {
        throw usage_error(-1, detail::text("hvd: ", e.what()));
    }
}

/// Takes the thresholds that an earlier search has found for this machine and these tensors, from
/// the file `options.file` of rank 0. If there are none, they are searched for, and rank 0 writes
/// them there at the end; if it can't, it says so through the sink of `set_message_sink`. Other
/// ranks need no file. **Collective**.
/// @throws hvd::usage_error on rank 0, with file, line and value, for a file that is no such file,
/// and hvd::peer_error on the others; otherwise as `hvd::autotune`.
/// @snippet tests/interop/autotune_file.cpp autotune_file
template <class Backend, class X>
autotune autotune_with_file(engine<Backend>& engine, X&& tensors, autotune_options options) {
    detail::tuned_engine<Backend> target(engine);
    return detail::tuned_by_file(engine, target, tuning_key_of(engine, tensors),
                                 std::move(options));
}
template <class Backend, class X>
autotune autotune_with_file(communicator<Backend>& comm, X&& tensors, autotune_options options) {
    detail::tuned_communicator<Backend> target(comm);
    return detail::tuned_by_file(comm, target, tuning_key_of(comm, tensors), std::move(options));
}

}  // namespace hvd::inline v0
