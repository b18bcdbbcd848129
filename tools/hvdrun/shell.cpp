// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "shell.hpp"

#include <cstdlib>

#include <sys/stat.h>
#include <unistd.h>

#include "failure.hpp"

namespace hvdrun {
namespace {

bool is_plain(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-./:=,@%+^").find(c) != std::string_view::npos;
}

bool is_program(const std::string& path) {
    struct stat about{};
    return ::stat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode) &&
           ::access(path.c_str(), X_OK) == 0;
}

// Reads one word of a line.
class word_reader {
public:
    word_reader(std::string_view line, std::string_view name) : rest_(line), name_(name) {}

    bool next(std::string& word) {
        while (!rest_.empty() && is_space(rest_.front())) rest_.remove_prefix(1);
        if (rest_.empty()) return false;
        word.clear();
        while (!rest_.empty() && !is_space(rest_.front())) take_into(word);
        return true;
    }

private:
    static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n'; }

    char take() {
        if (rest_.empty())
            throw usage_failure(std::string(name_) + ": a quote or a backslash is not closed");
        const char c = rest_.front();
        rest_.remove_prefix(1);
        return c;
    }

    void take_into(std::string& word) {
        const char c = take();
        if (c == '\\') {
            word += take();
        } else if (c == '\'' || c == '"') {
            for (char inside = take(); inside != c; inside = take())
                word += c == '"' && inside == '\\' ? take() : inside;
        } else {
            word += c;
        }
    }

    std::string_view rest_, name_;
};

}  // namespace

std::string for_shell(std::string_view word) {
    bool plain = !word.empty();
    for (const char c : word) plain = plain && is_plain(c);
    if (plain) return std::string(word);
    std::string result = "'";
    for (const char c : word) {
        if (c == '\'') result += "'\\''";
        else result += c;
    }
    return result + "'";
}

std::string line_of(const words& all) {
    std::string result;
    for (const std::string& word : all) result += (result.empty() ? "" : " ") + for_shell(word);
    return result;
}

words split(std::string_view line, std::string_view name) {
    words result;
    word_reader reader(line, name);
    for (std::string word; reader.next(word);) result.push_back(word);
    return result;
}

std::string find_program(const std::string& name) {
    if (name.find('/') != std::string::npos) return is_program(name) ? name : "";
    const char* path = std::getenv("PATH");
    std::string_view rest = path == nullptr ? "/usr/bin:/bin" : path;
    for (;;) {
        const std::size_t colon = rest.find(':');
        const std::string_view folder = rest.substr(0, colon);
        const std::string file = (folder.empty() ? "." : std::string(folder)) + "/" + name;
        if (is_program(file)) return file;
        if (colon == std::string_view::npos) return "";
        rest.remove_prefix(colon + 1);
    }
}

}  // namespace hvdrun
