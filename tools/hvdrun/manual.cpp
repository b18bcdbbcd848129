// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "manual.hpp"

#include <cctype>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

namespace hvdrun {

namespace {

// An option as the files tell it.
struct described_option {
    std::vector<std::string> names;  // with their dashes
    std::string help;
    int values;
};

std::vector<described_option> options_of(const CLI::App& app) {
    std::vector<described_option> result;
    for (const CLI::Option* one : app.get_options()) {
        if (one->get_group().empty()) continue;
        described_option told{{}, one->get_description(), one->get_items_expected_min()};
        for (const std::string& name : one->get_snames()) told.names.push_back("-" + name);
        for (const std::string& name : one->get_lnames()) told.names.push_back("--" + name);
        if (told.names.empty()) continue;  // a word without a name: the synopsis has it
        if (told.names.front() == "-n") told.names.insert(told.names.begin(), "-np");
        result.push_back(std::move(told));
    }
    return result;
}

std::string escaped(std::string_view text, std::string_view special) {
    std::string result;
    for (const char c : text) {
        if (special.find(c) != special.npos) result += '\\';
        result += c;
    }
    return result;
}

std::string for_roff(std::string_view text) { return escaped(text, "\\-"); }

std::string manual(const CLI::App& app, const described_program& own) {
    std::string title = own.name;
    for (char& c : title) c = char(std::toupper(static_cast<unsigned char>(c)));
    const std::string name = for_roff(own.name);
    std::string result = ".TH " + for_roff(title) + " 1 \"\" \"hvd " + own.version +
                         "\" \"hvd\"\n.SH NAME\n" + name + " \\- " + for_roff(own.purpose) +
                         "\n.SH SYNOPSIS\n.B " + name + "\n" + for_roff(own.synopsis) +
                         "\n.SH DESCRIPTION\n" + for_roff(app.get_description()) +
                         "\n.SH OPTIONS\n";
    for (const described_option& one : options_of(app)) {
        result += ".TP\n";
        for (std::size_t i = 0; i < one.names.size(); ++i)
            result += (i == 0 ? "\\fB" : ", \\fB") + for_roff(one.names[i]) + "\\fR";
        for (int i = 0; i < one.values; ++i) result += " \\fIvalue\\fR";
        result += "\n" + for_roff(one.help) + "\n";
    }
    return result + ".SH EXIT STATUS\n" + for_roff(own.exit_codes) + "\n.SH EXAMPLES\n.nf\n" +
           for_roff(own.examples) + "\n.fi\n.SH SEE ALSO\n" + for_roff(own.page) + " of hvd\n";
}

std::string listed(const std::vector<described_option>& all, int least_values) {
    std::string result;
    for (const described_option& one : all)
        for (const std::string& name : one.names)
            if (one.values >= least_values) result += name + " ";
    return result;
}

// The first word that is no option is the program, which has its own completion.
constexpr const char* bash_of_program =
    "    elif [[ $word != -* ]]; then\n"
    "      declare -F _command_offset >/dev/null && _command_offset $i && return\n"
    "      COMPREPLY=($(compgen -f -- \"$cur\"))\n"
    "      return\n";

// The name of a function of a shell has no dash.
std::string function_of(const described_program& own) {
    std::string result = "_" + own.name;
    for (char& c : result)
        if (c == '-') c = '_';
    return result;
}

std::string bash(const CLI::App& app, const described_program& own) {
    const std::vector<described_option> all = options_of(app);
    return "# bash completion for " + own.name + "\n" + function_of(own) +
           "() {\n"
           "  local options='" +
           listed(all, 0) +
           "'\n"
           "  local with_value=' " +
           listed(all, 1) + "' with_two=' " + listed(all, 2) +
           "'\n"
           "  local word cur=${COMP_WORDS[COMP_CWORD]} i=1 values=0\n"
           "  for ((; i < COMP_CWORD; i++)); do\n"
           "    word=${COMP_WORDS[i]}\n"
           "    if [[ $word == = ]]; then continue\n"
           "    elif ((values > 0)); then ((values--))\n" +
           (own.starts_another ? bash_of_program : "") +
           "    elif [[ $with_two == *\" $word \"* ]]; then values=2\n"
           "    elif [[ $with_value == *\" $word \"* ]]; then values=1\n"
           "    fi\n"
           "  done\n"
           "  if ((values > 0)); then COMPREPLY=($(compgen -f -- \"${cur#=}\"))\n"
           "  elif [[ $cur == -* ]]; then COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n" +
           (own.starts_another ? "  else COMPREPLY=($(compgen -c -f -- \"$cur\"))\n" : "") +
           "  fi\n"
           "}\n"
           "complete -o filenames -F " +
           function_of(own) + " " + own.name + "\n";
}

std::string in_single_quotes(const std::string& text) {
    std::string result = "'";
    for (const char c : text) {
        if (c == '\'') result += "'\\''";
        else result += c;
    }
    return result + "'";
}

std::string zsh(const CLI::App& app, const described_program& own) {
    std::string result = "#compdef " + own.name + "\n_arguments -S";
    for (const described_option& one : options_of(app))
        for (const std::string& name : one.names) {
            std::string spec = "*" + name + "[" + escaped(one.help, "[]\\:") + "]";
            for (int i = 0; i < one.values; ++i) spec += ":value:_files";
            result += " \\\n  " + in_single_quotes(spec);
        }
    if (own.starts_another)
        result += " \\\n  '(-)1:program:_command_names -e' \\\n  '*::arguments:_normal'";
    return result + "\n";
}

}  // namespace

std::string installed_file(const CLI::App& app, const described_program& own,
                           const std::string& which) {
    return which == "manual" ? manual(app, own) : which == "bash" ? bash(app, own) : zsh(app, own);
}

}  // namespace hvdrun
