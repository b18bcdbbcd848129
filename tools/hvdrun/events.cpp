// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "events.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include <fcntl.h>

#include "failure.hpp"
#include "times.hpp"

namespace hvdrun {
namespace {

// The length of a character of UTF-8, or 0 if these bytes are none.
std::size_t length_of(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const std::size_t n = byte(0) < 0x80   ? 1
                          : byte(0) < 0xc2 ? 0
                          : byte(0) < 0xe0 ? 2
                          : byte(0) < 0xf0 ? 3
                          : byte(0) < 0xf5 ? 4
                                           : 0;
    if (n > text.size()) return 0;
    for (std::size_t i = 1; i < n; ++i)
        if ((byte(i) & 0xc0) != 0x80) return 0;
    // Surrogates, numbers above the last, and longer forms than needed.
    const bool is_none =
        n == 3   ? (byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xed && byte(1) >= 0xa0)
        : n == 4 ? (byte(0) == 0xf0 && byte(1) < 0x90) || (byte(0) == 0xf4 && byte(1) >= 0x90)
                 : false;
    return is_none ? 0 : n;
}

std::string in_quotes(std::string_view text) {
    std::string result = "\"";
    while (!text.empty()) {
        const std::size_t n = length_of(text);
        const unsigned char c = static_cast<unsigned char>(text[0]);
        char code[8];
        if (n == 0) {
            result += "\\ufffd";
        } else if (c == '"' || c == '\\') {
            result += '\\';
            result += text[0];
        } else if (c < 0x20) {
            std::snprintf(code, sizeof code, "\\u%04x", unsigned(c));
            result += code;
        } else {
            result += text.substr(0, n);
        }
        text.remove_prefix(n == 0 ? 1 : n);
    }
    return result + "\"";
}

}  // namespace

json_value::json_value(const std::string& value) : text(in_quotes(value)) {}

json_value::json_value(double number) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.6f", number);
    text = digits;
}

json_value::json_value(const std::vector<int>& numbers) {
    for (const int number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
    text = "[" + text + "]";
}

event_log::event_log(const std::string& path) {
    if (path.empty()) return;
    file_ = file_descriptor(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666));
    if (!file_)
        throw usage_failure("--event-log " + path +
                            ": the file cannot be written: " + strerror(errno));
}

void event_log::add(const char* event,
                    const std::vector<std::pair<const char*, json_value>>& values) {
    if (!file_) return;
    std::string line = "{\"time\": \"" + timestamp() + "\", \"event\": \"" + event + "\"";
    for (const auto& [name, value] : values)
        line += std::string(", \"") + name + "\": " + value.text;
    line += "}\n";
    if (write_all(file_.number(), line.data(), line.size())) return;
    std::fprintf(stderr, "hvdrun: the event log ends here: %s\n", strerror(errno));
    file_ = file_descriptor();
    is_cut_off_ = true;
}

}  // namespace hvdrun
