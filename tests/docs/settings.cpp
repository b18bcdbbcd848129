// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// docs/reference/settings.md has a row for each setting, as the tables of the code say, with what
// keeps it: a variable of Horovod's or another reason. It names all other variables, too. With the
// argument --rows this prints the rows.

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <vector>

#include <hvd/settings.hpp>

namespace {

// Horovod's variables, each as code.
std::string names(std::string_view list) {
    std::string all;
    while (!list.empty()) {
        const std::size_t comma = list.find(", ");
        all += (all.empty() ? "`" : ", `") + std::string(list.substr(0, comma)) + "`";
        list.remove_prefix(comma == list.npos ? list.size() : comma + 2);
    }
    return all;
}

std::string kept_by(const hvd::detail::setting& s) {
    const std::string reason = s.needed;
    if (reason.empty() == std::string_view(s.replaces).empty())
        std::cout << s.key << " has no reason, or two\n", std::exit(1);
    return reason.empty() ? names(s.replaces) : reason;
}

template <class Options>
void add_rows(std::vector<std::string>& rows) {
    const Options defaults{};
    for (const hvd::detail::setting& s : hvd::detail::settings_of<Options>::table) {
        const std::string value = hvd::detail::value_text(s, &defaults);
        rows.push_back("| `" + std::string(s.key) + "` | `" + s.variable + "` | " +
                       (value.empty() ? "empty" : value) + " | " + hvd::detail::permitted(s) +
                       " | " + s.effect + " | " + kept_by(s) + " |");
    }
}

// A row of the page's tables of settings begins with a key and a variable.
bool is_row(const std::string& line) { return line.find("` | `HVD_") != line.npos; }

}  // namespace

int main(int, char** argv) {
    std::vector<std::string> rows;
    add_rows<hvd::communicator_options>(rows);
    add_rows<hvd::engine_options>(rows);
    add_rows<hvd::autotune_options>(rows);
    add_rows<hvd::timeline_options>(rows);
    add_rows<hvd::tcp_options>(rows);
    add_rows<hvd::elastic::bounds>(rows);
    if (std::strcmp(argv[1], "--rows") == 0) {
        for (const std::string& row : rows) std::cout << row << '\n';
        return 0;
    }
    std::ifstream page(argv[1]);
    std::stringstream whole;
    whole << page.rdbuf();
    int wrong = 0;
    std::size_t found = 0;
    for (std::string line; std::getline(whole, line);) {
        if (!is_row(line)) continue;
        if (found < rows.size() && line == rows[found]) {
            ++found;
            continue;
        }
        std::cout << "the page has\n"
                  << line << "\nwhere the code has\n"
                  << (found < rows.size() ? rows[found] : "no more rows") << '\n';
        return 1;
    }
    if (found < rows.size()) std::cout << "the page lacks\n" << rows[found] << '\n', ++wrong;
    for (const std::string_view name : hvd::detail::other_variables)
        if (name != "HVD_JOBS" &&
            whole.str().find("`" + std::string(name) + "`") == std::string::npos)
            std::cout << "the page lacks " << name << '\n', ++wrong;
    // Every variable of Horovod's that a setting replaces is in the other table, too.
    const std::string text = whole.str();
    for (const std::string& row : rows) {
        const std::size_t at = row.find("`HOROVOD_");
        if (at == row.npos) continue;
        const std::string name = row.substr(at, row.find('`', at + 1) + 1 - at);
        if (text.find("\n| " + name) != text.npos) continue;
        std::cout << "the table of Horovod's variables lacks " << name << '\n';
        ++wrong;
    }
    return wrong == 0 ? 0 : 1;
}
