// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

// Options from a file in YAML, or in JSON, which YAML includes. It needs yaml-cpp.

#include <cstdio>
#include <optional>
#include <sstream>

#include <yaml-cpp/anchor.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include "../core/settings/configuration.hpp"

namespace hvd::inline v0 {
namespace detail {

// Counts the documents of a file.
struct document_counter final : YAML::EventHandler {
    int count = 0;
    YAML::Mark last;

    void OnDocumentStart(const YAML::Mark& mark) override {
        ++count;
        last = mark;
    }
    void OnDocumentEnd() override {}
    void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
    void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
    void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  const std::string&) override {}
    void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                         YAML::EmitterStyle::value) override {}
    void OnSequenceEnd() override {}
    void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                    YAML::EmitterStyle::value) override {}
    void OnMapEnd() override {}
};

// The text of a file in YAML or JSON, with one document.
class yaml_text {
public:
    yaml_text(std::string text, std::string path)
        : text_(std::move(text)), path_(std::move(path)) {}

    // @throws hvd::usage_error, with file and line, for a text that is neither.
    YAML::Node load() const {
        try {
            check_documents();
            return YAML::Load(text_);
        } catch (const YAML::Exception& e) {
            refuse(e.mark, "it is no YAML: ", e.msg);
        }
    }

    std::string place(const YAML::Mark& mark) const {
        return std::string(std::string_view(text(path_, ":", mark.line + 1)));
    }
    template <class... Parts>
    [[noreturn]] void refuse(const YAML::Mark& mark, const Parts&... parts) const {
        throw usage_error(-1, text("hvd: ", place(mark), ": ", parts...));
    }

private:
    // YAML::Load passes over what comes behind the first document, and YAML::LoadAll has no end for
    // a file that is only a comma.
    void check_documents() const {
        std::istringstream stream(text_);
        YAML::Parser parser(stream);
        document_counter documents;
        while (documents.count < 2 && parser.HandleNextDocument(documents)) {
        }
        if (documents.count == 2) refuse(documents.last, "it has more than one document");
    }

    std::string text_, path_;
};

// The whole of a file, or nothing if it can't be read.
inline std::optional<std::string> text_of_file(const std::string& path) {
    std::string text;
    char part[4096];
    std::FILE* const file = std::fopen(path.c_str(), "rb");
    for (std::size_t n = 1; file != nullptr && n > 0;)
        text.append(part, n = std::fread(part, 1, sizeof part, file));
    const bool failed = file == nullptr || std::ferror(file) != 0;
    if (file != nullptr) std::fclose(file);
    if (failed) return {};
    return text;
}

// The text of a file of options: its maps, whose scalars are values. Aliases, lists of maps and
// more than one document have no meaning here.
class options_file : yaml_text {
public:
    using yaml_text::yaml_text;

    configuration read() {
        const YAML::Node document = load();
        if (!document.IsNull()) read_map(document, "", 0);
        return std::move(made_);
    }

private:
    void read_map(const YAML::Node& map, const std::string& section, int depth) {
        if (!map.IsMap()) refuse(map.Mark(), section.empty() ? "the file" : section, " is no map");
        for (const auto& item : map) {
            const YAML::Node key = item.first;
            const YAML::Node value = item.second;
            if (!key.IsScalar()) refuse(key.Mark(), "a key is no text");
            const std::string name = section + key.Scalar();
            if (value.IsMap() && depth < 2) read_map(value, name + ".", depth + 1);
            else read_value(key, name, value);
        }
    }

    void read_value(const YAML::Node& key, const std::string& name, const YAML::Node& value) {
        for (const auto& e : made_.entries())
            if (e.key == name) refuse(key.Mark(), name, " stands twice; first at ", e.where);
        made_.add(name, text_of(name, value), place(key.Mark()));
    }

    std::string text_of(const std::string& name, const YAML::Node& value) {
        if (value.IsScalar()) return value.Scalar();
        if (!value.IsSequence()) refuse(value.Mark(), name, " has no value");
        std::string list;
        for (const YAML::Node& item : value) {
            if (!item.IsScalar()) refuse(value.Mark(), name, " is a list of more than numbers");
            if (!list.empty()) list += ',';
            list += item.Scalar();
        }
        return list;
    }

    configuration made_;
};

}  // namespace detail

/// Reads a file of options in YAML or JSON: a map with the keys of `docs/reference/settings.md`.
/// @throws hvd::usage_error, with file and line, for a file that can't be read or is neither, for
/// an unknown key and for one that stands twice.
/// @snippet tests/interop/options_file.cpp options_file
inline configuration read_configuration(const std::string& path) {
    std::optional<std::string> text = detail::text_of_file(path);
    if (!text)
        throw usage_error(-1, detail::text("hvd: the file of options '", path, "' can't be read"));
    return detail::options_file(std::move(*text), path).read();
}

/// Returns the configuration of the file that HVD_CONFIG names, if it does, and of the environment,
/// which wins.
/// @throws hvd::usage_error as `read_configuration` and `configuration::from_environment`.
inline configuration configuration_from_environment_and_file(environment_names names = {}) {
    configuration made;
    if (const char* const path = std::getenv("HVD_CONFIG"); path != nullptr && *path != 0)
        made = read_configuration(path);
    std::vector<std::string_view> read_here(names.others.begin(), names.others.end());
    read_here.push_back("HVD_CONFIG");
    names.others = read_here;
    made.add(configuration::from_environment(names));
    return made;
}

/// Returns options with the values of the environment and of the file that HVD_CONFIG names. The
/// environment wins over the file, and the file over `start`.
/// @tparam Options `communicator_options`, `engine_options`
/// @throws hvd::usage_error for what is unknown or wrong in either.
/// @snippet tests/interop/options_file.cpp options_file
template <class Options = communicator_options>
[[nodiscard("hvd: it changes nothing else")]] Options options_from_environment_and_file(
    Options start = {}) {
    return configuration_from_environment_and_file().apply(std::move(start));
}

}  // namespace hvd::inline v0
