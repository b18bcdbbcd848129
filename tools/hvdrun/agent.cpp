// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "agent.hpp"

#include "remote.hpp"

namespace hvdrun {
namespace {

// Two shells work on the other host, and each clears up when the other is killed. The first is the
// agent's guard: it has the connection's process number, starts the agent, and waits for its end.
// The agent has a session of its own, so that who kills the connection's group leaves it, and it
// ends with its input. Both know the private folder's name before it is made.
constexpr std::string_view for_both =
    R"sh(case $d in /*) ;; *) d=$PWD/$d ;; esac
send() { kill -$1 -$2 || kill -$1 $2; } 2>/dev/null
wait_for() {
  i=0
  while [ $i -lt $patience ] && [ ! -e "$d/killed" ]; do
    left=
    for p; do if kill -0 -$p 2>/dev/null; then left=$p; fi; done
    [ -n "$left" ] || break
    sleep 0.1
    i=$((i+1))
  done
}
finish() {
  rm -f "$d/alive"
  set --
  for f in "$d"/*.p; do if read -r p <"$f"; then set -- "$@" $p; fi; done 2>/dev/null
  for p; do send TERM $p; done
  wait_for "$@"
  for p; do send KILL $p; done
  for f in "$d"/*.q?; do if read -r p <"$f"; then kill -KILL $p; fi; done 2>/dev/null
  for i in 1 2 3 4 5; do [ ! -e "$d" ] || rm -rf "$d"; done
}
)sh";

// A tool that is not there is named.
constexpr std::string_view look_for_tools =
    R"sh(for c in setsid flock mkdir mkfifo dd wc cat rm sleep; do
  command -v $c >/dev/null || { echo hvdrun: this host has no $c >&2; exit 125; }
done
)sh";

// The pipe of the command substitution is 9 of the agent, and of those of its processes that make
// files: the guard hears of their end by it, however they end. The agent's script comes behind this
// one by the connection.
constexpr std::string_view guard_work =
    R"sh(trap : HUP INT PIPE TERM
exec 4>&1
c=$(exec setsid /bin/sh -c "$reader" 9>&1 >&4 4>&-)
c=$?
[ ! -e "$d" ] || {
  echo "hvdrun: the shell that starts the ranks of this host ended with $c" >&2
  finish >/dev/null 2>&1
}
exit $c
)sh";

// A private folder holds the secret, pipes with names, the output that is on its way, and by rank
// the number of its process (N.p), of those that bring its input and read its output (N.qi, N.qo,
// N.qe), the signal that ends it (N.k), and the shell that waits for it (N.h). A file "killed" ends
// all patience: the kernel may know dead processes of a group for long, until the first process of
// a container has reaped them.
constexpr std::string_view private_folder =
    R"sh(trap 'trap "" HUP INT PIPE TERM; finish' EXIT
trap 'exit 125' HUP INT PIPE TERM
mkdir -m 700 "$d" || exit 125
full() {
  echo "hvdrun: this host has no room for a file in ${TMPDIR:-/tmp}" >&2
  exit 125
}
( umask 077; : >"$d/alive" && mkfifo "$d/input" && flock 7 7>"$d/turn" ) || full
)sh";

// note() writes the number of this process, and ends it if its rank or the agent has ended. Who
// ends them removes "alive" or N.h before it looks for numbers, so that no process is missed.
//
// look() finds ranks whose shell has been killed, which can't tell their end: the sleep lets this
// shell learn which of its children have ended.
//
// store() keeps so many bytes of input that follow a line. A shell reads its input byte by byte,
// and so no further than the line; dd reads them at once, and perhaps in parts.
//
// 4 is the connection. Who writes to it has the lock of the file "turn" by 7 meanwhile: a process
// that is killed there stops no other. 8 is the input of a rank. Those who write ignore SIGPIPE.
constexpr std::string_view agent_functions =
    R"sh(exec 4>&1 >/dev/null 8<>"$d/input"
frame() {
  { flock 7; printf '%s\n' "$k$*" >&4; } 7>"$d/turn"
} 2>/dev/null
note() {
  read -r self x </proc/self/stat
  echo $self >"$d/$1.$2"
  [ -e "$d/alive" ] && [ -e "$d/$1.h" ] || exit
} 2>/dev/null
pump() {
  trap '' PIPE
  while :; do
    r=$(LC_ALL=C dd bs=65536 count=1 of="$d/$2.$1" 2>&1 4>&- 8>&-)
    case $r in
      0+0*) break ;;
      [01]+[01]*) ;;
      *records*) echo "hvdrun: this host has no room for the output of a rank in $d" >&2 ;;
      *) break ;;
    esac
    {
      flock 7
      { printf '%s\n' "$k$1 $2"; cat "$d/$2.$1"; printf '%s\n' "$k."; } >&4
    } 7>"$d/turn" 2>/dev/null || break
    case $r in 0+1*) sleep 0.05 ;; esac
  done
}
feed() {
  trap '' PIPE
  while read -r x <&8 && [ "$x" != end ]; do
    cat "$d/in" 2>/dev/null || { frame f $1 1; exit; }
    frame f $1 0
  done
}
store() {
  has=0 had=-1
  printf '' >"$d/in"
  while [ $has -lt $1 ] && [ $has -gt $had ]; do
    had=$has
    dd bs=$(($1 - $has)) count=1 >>"$d/in" 9>&-
    has=$(wc -c <"$d/in")
  done
  echo more >&8
  [ $has -ge $1 ]
} 2>/dev/null
signal() {
  [ "$1 $2" != 'KILL *' ] || : >"$d/killed"
  case $1$2 in TERM[0-9]*|KILL[0-9]*) echo $1 >"$d/$2.k" ;; esac
  for f in "$d"/$2.p; do
    read -r p <"$f" && send $1 $p
  done 2>/dev/null
  ( trap '' PIPE; frame a ) 9>&- &
}
lose() {
  rm -f "$d/$1.h"
  if read -r p <"$d/$1.p"; then send KILL $p; fi
  for q in "$d/$1".q?; do if read -r p <"$q"; then kill -KILL $p; fi; done
  rm -f "$d/$1".*
  frame x $1 137
  frame g $1
} 2>/dev/null
look() {
  sleep 0
  for f in "$d"/*.h; do
    h=
    read -r h <"$f"
    if [ -n "$h" ] && ! kill -0 $h; then
      f=${f##*/}
      ( trap '' PIPE; lose ${f%.h} ) 9>&- &
    fi
  done 2>/dev/null
}
end_group() {
  kill -TERM -$2 2>/dev/null || return
  x=
  read -r x <"$d/$1.k"
  [ "$x" = KILL ] || wait_for $2
  kill -KILL -$2
} 2>/dev/null
)sh";

// The processes that a rank leaves are ended with it. A rank may be asked to end before the number
// of its process is written. It may even end before it has opened its pipes, for which others wait.
constexpr std::string_view start_of_rank =
    R"sh(start() {
  : >"$d/$1.h"
  (
    mkfifo "$d/$1.O" "$d/$1.E" || exit
    input=/dev/null feeder=
    if [ -n "$2" ]; then
      input=$d/$1.I
      mkfifo "$input" || exit
      { note $1 qi; feed $1 >"$input"; } &
      feeder=$!
    fi
    { note $1 qo; pump o $1 <"$d/$1.O"; } &
    { note $1 qe; pump e $1 <"$d/$1.E"; } &
    (
      note $1 p
      if read -r x <"$d/$1.k"; then kill -$x $self; fi 2>/dev/null
      exec <"$input" >"$d/$1.O" 2>"$d/$1.E" 4>&- 8>&-
      rm -f "$d/$1.O" "$d/$1.E" "$d/$1.I"
      set -- "$(command -v setsid)"
      eval "$s"
    ) &
    p=$!
    trap '' PIPE
    frame s $1 $p
    { wait $p; } 2>/dev/null
    frame x $1 $?
    for f in O E I; do if [ -p "$d/$1.$f" ]; then : <>"$d/$1.$f"; fi; done 2>/dev/null
    end_group $1 $p
    [ -z "$feeder" ] || { kill $feeder; wait $feeder; } 2>/dev/null
    rm -f "$d/$1.p"
    wait
    rm -f "$d/$1".[!h]*
    frame g $1
    rm -f "$d/$1.h"
  ) </dev/null 9>&- &
  [ ! -e "$d/$1.h" ] || echo $! >"$d/$1.h"
}
)sh";

constexpr std::string_view agent_work =
    R"sh(( umask 077; printf '%s\n' $secret >"$d/secret" ) || full
frame a
s=
while IFS= read -r l; do
  case $l in
    .*) s=$s${l#.}$n ;;
    'start '*) start ${l#start }; s= ;;
    look) look ;;
    'in end') echo end >&8 ;;
    'in '*) store ${l#in } || {
      echo "hvdrun: this host has no room for the input of a rank in $d" >&2
      exit 125
    } ;;
    [A-Z]*\ [0-9]*|KILL\ \*) signal ${l% *} "${l##* }" ;;
  esac
done
exit 0
)sh";

// Variables of the rank alone: PATH and others may keep the shell from its own commands. One that
// the shell may not set, as UID, is told and left out.
std::string exports(const environment& variables) {
    std::string result;
    for (const auto& [name, value] : variables)
        result += "command export " + name + "=" + for_shell(value) + "\n";
    return result;
}

std::string behind_dots(const std::string& text) {
    std::string result = ".";
    for (const char c : text) result += c == '\n' ? std::string("\n.") : std::string(1, c);
    return result + "\n";
}

}  // namespace

std::string agent_script(const agent_setup& setup) {
    const std::string both = "d=${TMPDIR:-/tmp}/hvd." + setup.private_name +
                             "\npatience=" + std::to_string(int(setup.kill_after * 10)) + "\n" +
                             std::string(for_both);
    std::string guard(look_for_tools);
    guard += both + "reader=" + for_shell(script_reader()) + "\n";
    guard += guard_work;
    std::string s = both + "k=" + for_shell(setup.key) + "\nsecret=" + setup.secret + "\n";
    s += private_folder;
    const std::string folder = for_shell(setup.folder);
    s += "cd " + folder + " || { echo hvdrun: this host has no folder " + folder +
         " >&2; exit 125; }\n";
    s += agent_functions;
    s += "job() {\ncommand export HVD_SECRET_FILE=\"$d/secret\"\n" + exports(setup.variables) +
         "}\nprogram() { exec \"$1\" " + line_of(setup.program) + "; }\n";
    s += start_of_rank;
    s += agent_work;
    return script_lines(guard) + script_lines(s);
}

std::string start_lines(int number, const environment& variables, bool with_input) {
    return behind_dots("job\n" + exports(variables) + "program \"$1\"") + "start " +
           std::to_string(number) + (with_input ? " in\n" : "\n");
}

std::string signal_line(int number, std::string_view signal) {
    return std::string(signal) + " " + std::to_string(number) + "\n";
}

std::string input_of(std::string_view bytes) {
    return "in " + std::to_string(bytes.size()) + "\n" + std::string(bytes);
}

std::string end_of_input_line() { return "in end\n"; }

std::string look_line() { return "look\n"; }

}  // namespace hvdrun
