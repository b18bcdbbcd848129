// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "remote.hpp"

namespace hvdrun {

const std::string remote_greeting = "hvdrun: this host has started its rank\n";

namespace {

// One line without single quotes and exclamation marks, which every login shell takes as it is.
// Each line of the script comes after a dot, so that no line of it can be its end.
const std::string reader =
    "n=$(printf \"\\nx\"); n=${n%x}; s=; "
    "while IFS= read -r l; do "
    "if [ \"$l\" = end ]; then eval \"$s\"; exit 125; fi; "
    "s=\"$s${l#.}$n\"; done; exit 125";

std::string sent(const std::string& script) {
    std::string result = ".";
    for (const char c : script) result += c == '\n' ? std::string("\n.") : std::string(1, c);
    return result + "\nend\n";
}

std::string filled(std::string word, const std::string& name, const std::string& value) {
    for (std::size_t at = 0; (at = word.find(name, at)) != std::string::npos; at += value.size())
        word.replace(at, name.size(), value);
    return word;
}

// The signal goes to the rank's process group, or to the rank while it has none yet.
std::string send(const std::string& signal) {
    return "{ kill -" + signal + " -$p || kill -" + signal + " $p; }";
}

// Waits until the rank's process group is gone, or its time is over.
std::string wait_for_group(double kill_after) {
    return "i=0; while [ $i -lt " + std::to_string(int(kill_after * 10)) +
           " ] && kill -0 -$p; do sleep 0.1; i=$((i+1)); done\n";
}

// Ends what the rank has left behind. Its own number may be another process's by now.
std::string end_group(double kill_after) {
    return "{ if kill -TERM -$p; then\n  " + wait_for_group(kill_after) +
           "  kill -KILL -$p\nfi; } 2>/dev/null\n";
}

// Reads signals from hvdrun, and ends the rank when hvdrun or the connection is gone.
std::string watcher(double kill_after) {
    return "( trap '' HUP INT TERM\n"
           "  while IFS= read -r s; do " +
           send("$s") + "; done <&3\n" + "  " + send("TERM") + "\n  " + wait_for_group(kill_after) +
           "  " + send("KILL") + "; rm -f \"$HVD_SECRET_FILE\" ) >/dev/null 2>&1 &\n";
}

// Variables of the rank alone: PATH and others may keep the shell from its own commands. One that
// the shell may not set, as UID, is told and left out.
std::string exports(const environment& variables) {
    std::string result;
    for (const auto& [name, value] : variables)
        result += "command export " + name + "=" + for_shell(value) + "\n";
    return result;
}

}  // namespace

words remote_command(const words& ssh, const std::string& host) {
    words result;
    for (const std::string& word : ssh)
        result.push_back(
            filled(filled(word, "{host}", host), "{command}", "exec /bin/sh -c '" + reader + "'"));
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

std::string remote_script(const remote_rank& rank) {
    std::string s =
        "HVD_SECRET_FILE=$(mktemp \"${TMPDIR:-/tmp}/hvd.XXXXXXXXXX\") || exit 125\n"
        "trap 'rm -f \"$HVD_SECRET_FILE\"' EXIT\n"
        "trap 'exit 125' HUP INT PIPE TERM\n"
        "printf '%s\\n' " +
        rank.secret +
        " >\"$HVD_SECRET_FILE\" || { echo \"hvdrun: this host has no room for a file in "
        "${TMPDIR:-/tmp}\" >&2; exit 125; }\n"
        "export HVD_SECRET_FILE\n";
    const std::string folder = for_shell(rank.folder);
    s += "cd " + folder + " || { echo hvdrun: this host has no folder " + folder +
         " >&2; exit 125; }\n"
         "exec 3<&0\nprintf '%s' " +
         for_shell(remote_greeting) +
         "\n"
         "set -- \"$(command -v setsid)\"\n"
         "[ -n \"$1\" ] || { echo hvdrun: this host has no setsid >&2; exit 125; }\n"
         "( " +
         exports(rank.variables) + "exec \"$1\" " + line_of(rank.program) +
         " ) </dev/null 3<&- &\np=$!\n" + watcher(rank.kill_after) +
         "w=$!\n{ wait $p; } 2>/dev/null\nc=$?\nrm -f \"$HVD_SECRET_FILE\"\n" +
         end_group(rank.kill_after) + "kill -KILL $w\nexit $c\n";
    return sent(s);
}

std::string remote_script(const std::string& commands) { return sent(commands + "exit 0\n"); }

}  // namespace hvdrun
