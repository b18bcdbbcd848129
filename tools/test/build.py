# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""A build folder: configuring it, the tests and targets that Meson knows of, building and running them."""

import fnmatch
import json
import os
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINE = re.compile(r"^ *\d+/\d+ (?:.* / )?(\S+) +(OK|FAIL|SKIP|TIMEOUT|ERROR|EXPECTEDFAIL|UNEXPECTEDPASS|INTERRUPT)\b")


class Broken(Exception):
    """A step of a stage that failed, and the file that says why."""

    def __init__(self, step, log):
        super().__init__(step)
        self.step, self.log = step, log


def newest_clang():
    found = [int(m[1]) for folder in os.environ["PATH"].split(os.pathsep) if os.path.isdir(folder)
             for m in map(re.compile(r"clang\+\+-(\d+)$").match, os.listdir(folder)) if m]
    return f"clang++-{max(n for n in found if n >= 16)}" if any(n >= 16 for n in found) else "clang++"


def matches(test, patterns):
    names = [test["name"], *(suite.split(":")[-1] for suite in test["suite"])]
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in names)


class Build:
    def __init__(self, name, table, jobs):
        self.name, self.table, self.jobs = name, table, jobs
        self.folder = ROOT / "build" / name
        self.variables = dict(table.get("variables", {}))  # of its tests

    def environment(self):
        """Compilers find their results in ccache, where it is installed, also those of another clone."""
        chosen = dict(os.environ)
        if "compiler" in self.table:
            compiler = newest_clang() if self.table["compiler"] == "clang" else self.table["compiler"]
            chosen["CXX"] = f"ccache {compiler}" if shutil.which("ccache") else compiler
            if shutil.which("ld.lld"):
                chosen["CXX_LD"] = "lld"
        chosen.update(CCACHE_BASEDIR=str(ROOT), CCACHE_NOHASHDIR="1", CCACHE_SLOPPINESS="pch_defines,time_macros,include_file_mtime,include_file_ctime",
                      PYTHONUNBUFFERED="1")
        return chosen

    def options(self, with_mpi):
        options = list(self.table["options"])
        if not with_mpi:
            options = ["-Dmpi=auto" if o == "-Dmpi=enabled" else "-Dboost_mpi=auto" if o.startswith("-Dboost_mpi") else o for o in options
                       if not o.startswith("-Dmpi_flavour")]
        # Many processors are busy with smaller units.
        options.append(f"-Dunity_size={14 if self.jobs <= 4 else 4}")
        compiler, flags = self.table.get("compiler"), list(self.table.get("flags", []))
        if compiler:  # Units name their files by whole paths, also in texts: without this clone's folder ccache finds those of another.
            flags.append(f"-ffile-prefix-map={self.folder}/../../=")
        if compiler == "g++":  # It needs a sixth less time if it has more memory before it looks for what it no longer needs.
            flags.append("--param=ggc-min-heapsize=1000000")
        if flags:
            options.append(f"-Dcpp_args={flags}")
        return options

    def configure(self, with_mpi=True, extra=()):
        """Sets the folder up, and does so anew if options, compiler or the libraries that Meson looks for have changed. Meson's CMake writes into
        the folder in which it is started: each setup has its own, since another may run, and Doxygen reads this repository's."""
        options = [*self.options(with_mpi), *extra]
        environment = self.environment()
        stamp, log = self.folder.with_suffix(".options"), self.folder.with_suffix(".log")
        said = " ".join([environment.get("CXX", ""), environment.get("CXX_LD", ""), *options, *libraries()])
        if (self.folder / "build.ninja").exists() and stamp.exists() and stamp.read_text() == said:
            command = ["ninja", "-C", self.folder, "build.ninja"]
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            command = ["meson", "setup", ".", ROOT, *options]
        with open(log, "w") as output:
            if subprocess.run(command, cwd=self.folder, env=environment, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode:
                raise Broken("configure", log)
        stamp.write_text(said)

    def introspect(self, what):
        return json.loads((self.folder / "meson-info" / f"intro-{what}.json").read_text())

    def select(self, tests, but, names):
        """The tests that match a pattern of `tests`, none of `but`, and one of `names` if there are any."""
        return [test for test in self.introspect("tests")
                if matches(test, tests) and not matches(test, but) and (not names or matches(test, names))]

    def targets(self, tests):
        files = {target["id"]: target["filename"] for target in self.introspect("targets")}
        root = self.folder.resolve()
        return sorted({str(pathlib.Path(file).resolve().relative_to(root)) for test in tests for target in test["depends"] for file in files[target]})

    def units(self, targets):
        """The number of translation units that the targets are made of."""
        listed = subprocess.run(["ninja", "-C", self.folder, "-t", "commands", *targets], capture_output=True, text=True, check=True).stdout
        return sum(" -c " in line for line in listed.splitlines())

    def compile(self, targets, log, jobs, variables=None):
        """Compiles with what tests that run at the same time leave of the processors, and returns the CPU seconds. A waiting rank yields its
        processor: a compiler of the usual policy would take a whole slice each time."""
        if not targets:
            return 0.0
        with open(log, "w") as output:
            status, cpu = finish(subprocess.Popen(["chrt", "--idle", "0", "ninja", "-C", self.folder, "-j", str(jobs), *targets], stdout=output, stderr=subprocess.STDOUT,
                                                  env={**self.environment(), **(variables or {})}, stdin=subprocess.DEVNULL))
        if status:
            raise Broken("build", log)
        return cpu

    def forget(self, targets):
        subprocess.run(["ninja", "-C", self.folder, "-t", "clean", *targets], check=True, stdout=subprocess.DEVNULL)

    def run(self, tests, stage, log, parallel, seen):
        """Runs the tests, tells seen(name, result) of each at once, and returns the records of all, and the CPU seconds."""
        record = self.folder / "meson-logs" / f"testlog-{log}.json"
        record.unlink(missing_ok=True)
        command = ["meson", "test", "-C", self.folder, "--no-rebuild", "--num-processes", str(parallel), "--logbase", f"testlog-{log}",
                   "--timeout-multiplier", str(stage.get("slower", 1)), *(test["name"] for test in tests)]
        process = subprocess.Popen([*unrandomised(self), *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                   env={**self.environment(), **self.variables, **stage.get("variables", {})}, stdin=subprocess.DEVNULL)
        for line in process.stdout:
            if found := LINE.match(line):
                seen(found[1], found[2])
                if found[2] not in ("OK", "EXPECTEDFAIL", "SKIP"):
                    print(line.rstrip(), flush=True)
        _, cpu = finish(process)
        return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else [], cpu


def finish(process):
    """Waits for a process, and returns its status and the CPU seconds of it and of all that it has waited for."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_utime + used.ru_stime


def unrandomised(build):
    """Randomisation is off under ThreadSanitizer if the kernel allows it: older runtimes fail in a widely randomised address space."""
    off = ["setarch", os.uname().machine, "-R"]
    return off if build.name == "tsan" and subprocess.run([*off, "true"], capture_output=True).returncode == 0 else []


def libraries():
    """The optional libraries that Meson finds: another set is another configuration."""
    headers = ["mpi.h", "yaml-cpp/yaml.h", "gloo/config.h", "dlpack/dlpack.h", "openssl/ssl.h", "boost/mpi.hpp", "eigen3/Eigen/Core",
               "CLI/CLI.hpp", "fmt/format.h"]
    return [header for header in headers if os.path.exists("/usr/include/" + header)]
