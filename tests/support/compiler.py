# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The compiler of a build folder, with the flags of one of its targets."""

import fcntl
import json
import pathlib
import subprocess

# Only these flags of the build are used: -I, -isystem, -std, -pthread.
KEPT = ("-I", "-isystem", "-std=", "-pthread")


def first_error(output):
    """The line of a compiler's output that a user reads first."""
    return next((line for line in output.splitlines() if "error:" in line), "")


def is_newer(file, others):
    return file.exists() and all(file.stat().st_mtime >= pathlib.Path(other).stat().st_mtime for other in others)


class Compiler:
    def __init__(self, build_root, like):
        commands = json.loads((pathlib.Path(build_root) / "compile_commands.json").read_text())
        entry = next(entry for entry in commands if like in entry["output"])
        words = entry["command"].replace('"', "").split()
        start = next(i for i, word in enumerate(words) if word.startswith("-"))
        self.folder = entry["directory"]
        self.command = [word for word in words[:start] if pathlib.Path(word).name != "ccache"]
        self.is_gcc = b"Free Software Foundation" in subprocess.run(
            self.command + ["--version"], capture_output=True, check=True).stdout
        for i, word in enumerate(words):
            if word in ("-I", "-isystem"):
                self.command += [word, self.absolute(words[i + 1])]
            elif word.startswith("-I"):
                self.command.append("-I" + self.absolute(word[2:]))
            elif word.startswith(KEPT):
                self.command.append(word)

    def absolute(self, path):
        """Meson's paths are seen from the build folder; programs are compiled elsewhere too."""
        return str((pathlib.Path(self.folder) / path).resolve())

    def compile(self, source, *flags):
        """Compiles a text; .returncode and .stdout, which holds the diagnostics."""
        return subprocess.run(self.command + [*flags, "-fsyntax-only", "-x", "c++", "-"], input=source, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.folder)

    def precompiled(self, folder, header):
        """The flags that include a header of hvd as a precompiled one, which the first caller makes in the folder."""
        made = pathlib.Path(folder) / (header.replace("/", "_") + ("" if self.is_gcc else ".pch"))
        output = made.with_name(made.name + ".gch") if self.is_gcc else made
        made.parent.mkdir(parents=True, exist_ok=True)
        with open(made.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_newer(output, self.headers_of(header)):
                text = made.with_suffix(".hpp")
                text.write_text(f"#include <{header}>\n")
                subprocess.run([*self.command, "-x", "c++-header", text, "-o", output], check=True, cwd=self.folder)
        return ["-include", str(made)] if self.is_gcc else ["-include-pch", str(made)]

    def headers_of(self, header):
        """The files that a header includes, itself among them."""
        made = subprocess.run([*self.command, "-M", "-x", "c++", "-"], input=f"#include <{header}>\n", text=True, check=True,
                              stdout=subprocess.PIPE, cwd=self.folder).stdout
        return made.replace("\\\n", " ").split()[2:]

    def has(self, header):
        return self.compile(f"#if !__has_include(<{header}>)\n#error absent\n#endif\n").returncode == 0
