// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "manual.hpp"

#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

namespace hvdrun {

const char* const examples =
    "hvdrun -np 4 ./train\n"
    "hvdrun -H node1:4,node2:4 ./train --epochs 3\n"
    "hvdrun --hostfile hosts --output-filename out ./train\n"
    "hvdrun -np 4 --min-np 2 ./train\n"
    "hvdrun --backend mpi -np 4 ./train_mpi\n"
    "hvdrun --check -H node1,node2";

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

std::string manual(const CLI::App& app) {
    std::string result = ".TH HVDRUN 1 \"\" \"hvd " HVDRUN_VERSION
                         "\" \"hvd\"\n"
                         ".SH NAME\nhvdrun \\- start a program of hvd on several ranks\n"
                         ".SH SYNOPSIS\n.B hvdrun\n[options] program [arguments]\n"
                         ".SH DESCRIPTION\n" +
                         for_roff(app.get_description()) + "\n.SH OPTIONS\n";
    for (const described_option& one : options_of(app)) {
        result += ".TP\n";
        for (std::size_t i = 0; i < one.names.size(); ++i)
            result += (i == 0 ? "\\fB" : ", \\fB") + for_roff(one.names[i]) + "\\fR";
        for (int i = 0; i < one.values; ++i) result += " \\fIvalue\\fR";
        result += "\n" + for_roff(one.help) + "\n";
    }
    result +=
        ".SH EXIT STATUS\n0 if all ranks ended with 0; 1 if hvdrun failed; 2 for a wrong command "
        "line; 126 or 127 if the program cannot be started or is not there; 128 and the number of "
        "a signal that ended the job; else that of the first rank that failed.\n"
        ".SH EXAMPLES\n.nf\n" +
        for_roff(examples) + "\n.fi\n.SH SEE ALSO\n";
    return result + for_roff("docs/launching.md") + " of hvd\n";
}

std::string listed(const std::vector<described_option>& all, int least_values) {
    std::string result;
    for (const described_option& one : all)
        for (const std::string& name : one.names)
            if (one.values >= least_values) result += name + " ";
    return result;
}

// The first word that is no option is the program, which has its own completion.
std::string bash(const CLI::App& app) {
    const std::vector<described_option> all = options_of(app);
    return "# bash completion for hvdrun\n"
           "_hvdrun() {\n"
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
           "    elif ((values > 0)); then ((values--))\n"
           "    elif [[ $word != -* ]]; then\n"
           "      declare -F _command_offset >/dev/null && _command_offset $i && return\n"
           "      COMPREPLY=($(compgen -f -- \"$cur\"))\n"
           "      return\n"
           "    elif [[ $with_two == *\" $word \"* ]]; then values=2\n"
           "    elif [[ $with_value == *\" $word \"* ]]; then values=1\n"
           "    fi\n"
           "  done\n"
           "  if ((values > 0)); then COMPREPLY=($(compgen -f -- \"${cur#=}\"))\n"
           "  elif [[ $cur == -* ]]; then COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
           "  else COMPREPLY=($(compgen -c -f -- \"$cur\"))\n"
           "  fi\n"
           "}\n"
           "complete -o filenames -F _hvdrun hvdrun\n";
}

std::string in_single_quotes(const std::string& text) {
    std::string result = "'";
    for (const char c : text) {
        if (c == '\'') result += "'\\''";
        else result += c;
    }
    return result + "'";
}

std::string zsh(const CLI::App& app) {
    std::string result = "#compdef hvdrun\n_arguments -S \\\n";
    for (const described_option& one : options_of(app))
        for (const std::string& name : one.names) {
            std::string spec = "*" + name + "[" + escaped(one.help, "[]\\:") + "]";
            for (int i = 0; i < one.values; ++i) spec += ":value:_files";
            result += "  " + in_single_quotes(spec) + " \\\n";
        }
    return result + "  '(-)1:program:_command_names -e' \\\n  '*::arguments:_normal'\n";
}

}  // namespace

std::string installed_file(const CLI::App& app, const std::string& which) {
    return which == "manual" ? manual(app) : which == "bash" ? bash(app) : zsh(app);
}

}  // namespace hvdrun
