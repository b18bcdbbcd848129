// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdlib>
#include <span>

#include <unistd.h>

#include "autotune_settings.hpp"
#include "communicator_settings.hpp"
#include "elastic_settings.hpp"
#include "engine_settings.hpp"
#include "read_setting.hpp"
#include "spelling.hpp"
#include "tcp_settings.hpp"
#include "timeline_settings.hpp"
#include "unread_variables.hpp"

namespace hvd::inline v0 {
namespace detail {

// Variables of hvd that are no settings. `docs/reference/settings.md` has all but that of `./run`.
inline constexpr const char* other_variables[] = {
    "HVD_CONFIG",     "HVD_MPI_CUDA_AWARE", "HVD_ALONE",        "HVD_LOCAL_RANK",
    "HVD_LOCAL_SIZE", "HVD_JOBS",           "HVD_DATA_SERVICE", "HVD_DATA_DISPATCHER"};

// Calls f with every setting of every aggregate of options.
template <class F>
void for_each_setting(F f) {
    for (const auto& s : settings_of<communicator_options>::table) f(s);
    for (const auto& s : settings_of<engine_options>::table) f(s);
    for (const auto& s : settings_of<autotune_options>::table) f(s);
    for (const auto& s : settings_of<timeline_options>::table) f(s);
    for (const auto& s : settings_of<tcp_options>::table) f(s);
    for (const auto& s : settings_of<elastic::bounds>::table) f(s);
}

}  // namespace detail

/// How `configuration::from_environment` takes variables that hvd does not know.
struct environment_names {
    std::span<const std::string_view> others = {};  ///< those that the program itself reads
    /// they are refused; otherwise they are told to the sink of `set_message_sink`, since a
    /// launcher may forward a site's own
    bool refuse_unknown = false;
};

/// Settings as they were written: in the environment, in a file, or in both.
///
/// `read_configuration` of `hvd/interop/options_file.hpp` makes one of a file. Nothing reads the
/// environment or a file unless the program says so.
/// @snippet tests/docs/snippets.cpp configuration
class configuration {
public:
    /// A value, by its key in a file ("tuning.chunk_bytes"), and where it was written.
    struct entry {
        std::string key, value, where;
    };

    configuration() = default;

    /// Takes all variables whose names begin with HVD_. An empty one (`HVD_TIMEOUT=`) is not set. A
    /// name that hvd does not know is told, with
    /// the name that was meant.
    /// @throws hvd::usage_error for such a name, if `names.refuse_unknown`, and for HVD_CONFIG,
    /// which `configuration_from_environment_and_file` of `hvd/interop/options_file.hpp` reads.
    static configuration from_environment(const environment_names& names = {}) {
        const char* const file = std::getenv("HVD_CONFIG");
        if (file != nullptr && *file != 0 && !is_among("HVD_CONFIG", names.others))
            refuse_file(file);
        detail::environment_is_read().store(true);
        configuration made;
        for (char** variable = detail::variables(); *variable != nullptr; ++variable) {
            const std::string_view all(*variable);
            const std::string_view name = all.substr(0, all.find('='));
            if (!name.starts_with("HVD_") || all.size() - name.size() < 2) continue;
            if (const detail::setting* const s = find_variable(name))
                made.entries_.push_back(
                    {s->key, std::string(all.substr(name.size() + 1)), std::string(name)});
            else if (!is_known_elsewhere(name, names.others))
                meet_unknown(name, names.refuse_unknown);
        }
        return made;
    }

    /// Adds a value; it wins over earlier ones for the key.
    /// @throws hvd::usage_error for a key that hvd does not know, with the key that was meant.
    void add(std::string_view key, std::string_view value, std::string_view where) {
        if (!is_key(key)) refuse_key(key, where);
        entries_.push_back({std::string(key), std::string(value), std::string(where)});
    }
    /// Adds the values of another configuration, which win.
    void add(const configuration& other) {
        entries_.insert(entries_.end(), other.entries_.begin(), other.entries_.end());
    }

    /// Returns options with the values that are written here; all others are those of `start`.
    /// @tparam Options `communicator_options`, `engine_options`, `autotune_options`,
    /// `timeline_options`, `tcp_options`, `elastic::bounds`
    /// @throws hvd::usage_error for a value that is none, or outside its range.
    template <class Options>
    Options apply(Options start = {}) const {
        if constexpr (std::is_same_v<Options, communicator_options>)
            detail::communicator_settings_are_read().store(true);
        if constexpr (std::is_same_v<Options, tcp_options>)
            detail::tcp_settings_are_read().store(true);
        for (const entry& e : entries_)
            for (const detail::setting& s : detail::settings_of<Options>::table)
                if (e.key == s.key && !detail::read_setting(s, e.value, &start)) refuse_value(s, e);
        return start;
    }

    /// The values, from the weakest to the strongest.
    const std::vector<entry>& entries() const noexcept { return entries_; }

private:
    static const detail::setting* find_variable(std::string_view name) {
        const detail::setting* found = nullptr;
        detail::for_each_setting([&](const detail::setting& s) {
            if (name == s.variable) found = &s;
        });
        return found;
    }
    static bool is_key(std::string_view key) {
        bool found = false;
        detail::for_each_setting([&](const detail::setting& s) { found = found || key == s.key; });
        return found;
    }

    // Variables of other parts of hvd, of its tests and of its tools.
    static bool is_known_elsewhere(std::string_view name,
                                   std::span<const std::string_view> others) {
        for (const std::string_view prefix :
             {"HVD_TEST_", "HVD_FAULT_", "HVD_EMULATION_", "HVD_LAB_", "HVD_PYTHON_"})
            if (name.starts_with(prefix)) return true;
        for (const std::string_view known : detail::other_variables)
            if (name == known) return true;
        return is_among(name, others);
    }
    static bool is_among(std::string_view name, std::span<const std::string_view> others) {
        for (const std::string_view other : others)
            if (name == other) return true;
        return false;
    }

    [[noreturn]] static void refuse_file(const char* file) {
        throw usage_error(-1, detail::text("hvd: HVD_CONFIG is '", file,
                                           "', and this program reads no file: it takes "
                                           "hvd::options_from_environment_and_file of "
                                           "hvd/interop/options_file.hpp"));
    }
    static void meet_unknown(std::string_view name, bool refuse) {
        detail::best_spelling meant(name);
        detail::for_each_setting([&](const detail::setting& s) { meant.offer(s.variable); });
        meant.offer("HVD_CONFIG");
        const detail::message line = detail::text(
            "hvd: the environment has ", name, ", which is no variable of hvd", meant.question());
        if (refuse) throw usage_error(-1, line);
        detail::write_line(line);
    }
    [[noreturn]] static void refuse_key(std::string_view key, std::string_view where) {
        detail::best_spelling meant(key);
        detail::for_each_setting([&](const detail::setting& s) { meant.offer(s.key); });
        throw usage_error(
            -1, detail::text("hvd: ", where, ": ", key, " is no option of hvd", meant.question()));
    }
    [[noreturn]] static void refuse_value(const detail::setting& s, const entry& e) {
        const bool is_variable = e.where == s.variable;
        throw usage_error(
            -1, detail::text("hvd: ", e.where, is_variable ? "" : ": ", is_variable ? "" : s.key,
                             " is '", e.value, "'; ", detail::complaint(s, e.value)));
    }

    std::vector<entry> entries_;
};

/// Returns options with the values of the environment's HVD_ variables; all others are those of
/// `start`.
/// @tparam Options `communicator_options`, `engine_options`, `timeline_options`
/// @throws hvd::usage_error for a wrong value, and as `configuration::from_environment`, which it
/// applies.
/// @snippet tests/docs/snippets.cpp options_from_environment
template <class Options = communicator_options>
[[nodiscard("hvd: it changes nothing else")]] Options options_from_environment(Options start = {}) {
    return configuration::from_environment().apply(std::move(start));
}

/// Lists the options, one a line, each with its value and where it comes from: "default", "code",
/// or "environment" or "file" with the place.
/// @snippet tests/docs/snippets.cpp configuration
template <class Options>
std::string describe(const Options& options, const configuration& from = {}) {
    const Options defaults{};
    std::string lines;
    for (const detail::setting& s : detail::settings_of<Options>::table) {
        const std::string value = detail::value_text(s, &options);
        std::string source = value == detail::value_text(s, &defaults) ? "default" : "code";
        for (const configuration::entry& e : from.entries()) {
            Options written = options;
            if (e.key == s.key && detail::read_setting(s, e.value, &written) &&
                detail::value_text(s, &written) == value)
                source = (e.where == s.variable ? "environment " : "file ") + e.where;
        }
        lines += detail::text(s.key, " = ", value, "  # ", source, "\n");
    }
    return lines;
}

}  // namespace hvd::inline v0
