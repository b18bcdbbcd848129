// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "remote.hpp"

namespace hvdrun {
namespace {

std::string filled(std::string word, const std::string& name, const std::string& value) {
    for (std::size_t at = 0; (at = word.find(name, at)) != std::string::npos; at += value.size())
        word.replace(at, name.size(), value);
    return word;
}

}  // namespace

// One line without single quotes and exclamation marks, which every login shell takes as it is.
// Each line of the script comes after a dot, so that no line of it can be its end.
const std::string& script_reader() {
    static const std::string reader =
        "n=$(printf \"\\nx\"); n=${n%x}; s=; "
        "while IFS= read -r l; do "
        "if [ \"$l\" = end ]; then eval \"$s\"; exit 125; fi; "
        "s=\"$s${l#.}$n\"; done; exit 125";
    return reader;
}

words remote_command(const words& ssh, const std::string& host) {
    words result;
    for (const std::string& word : ssh)
        result.push_back(filled(filled(word, "{host}", host), "{command}",
                                "exec /bin/sh -c '" + script_reader() + "'"));
    return result;
}

std::string readable_command(const words& ssh, const std::string& host) {
    std::string result;
    for (const std::string& word : ssh) {
        const bool is_command = word.find("{command}") != std::string::npos;
        result += (result.empty() ? "" : " ") +
                  (is_command ? word : for_shell(filled(word, "{host}", host)));
    }
    return result;
}

std::string script_lines(const std::string& script) {
    std::string result = ".";
    for (const char c : script) result += c == '\n' ? std::string("\n.") : std::string(1, c);
    return result + "\nend\n";
}

}  // namespace hvdrun
