# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The compiler of a build folder, with the flags that it compiles one of its sources with."""

import json
import pathlib
import subprocess

# Only these flags of the build are used: -I, -isystem, -std, -pthread.
KEPT = ("-I", "-isystem", "-std=", "-pthread")


def first_error(output):
    """The line of a compiler's output that a user reads first."""
    return next((line for line in output.splitlines() if "error:" in line), "")


class Compiler:
    def __init__(self, build_root, like):
        commands = json.loads((pathlib.Path(build_root) / "compile_commands.json").read_text())
        entry = next(entry for entry in commands if entry["file"].endswith(like))
        words = entry["command"].replace('"', "").split()
        start = next(i for i, word in enumerate(words) if word.startswith("-"))
        self.folder = entry["directory"]
        self.command = words[:start]
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

    def has(self, header):
        return self.compile(f"#if !__has_include(<{header}>)\n#error absent\n#endif\n").returncode == 0
