#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Builds a program as a stranger would and runs it: consume.py HOW SOURCE_ROOT BUILD_ROOT OPTION...

HOW is compiled (libhvd, built, installed and found by all of them), compiled_subproject, cmake, pkg_config, meson (these three against a tree installed from BUILD_ROOT), fetch or subdirectory (CMake with
the sources), subproject (Meson with the sources), compiled_sources (the files of src/ beside the
program's own), fresh (Meson installs the headers, without hvdrun and hvd-trace, and compiles nothing), or bare
(nothing but -I include)."""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
CXX = os.environ["CXX"].split()
FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Werror"]


def run(*command, **keywords):
    print("$", *command, flush=True)
    return subprocess.run([str(word) for word in command], check=True, **keywords)


def output_of(*command):
    return run(*command, stdout=subprocess.PIPE, text=True).stdout.split()


def install(build_root, work):
    """Installs into WORK and gives the prefix there: not the one hvd was configured with, as in a package."""
    run("meson", "install", "-C", build_root, "--no-rebuild", "--quiet", "--destdir", work / "installed")
    return next((work / "installed").rglob("share/pkgconfig")).parent.parent


def pkg_config(prefix):
    os.environ["PKG_CONFIG_PATH"] = os.pathsep.join(
        filter(None, [str(prefix / "share/pkgconfig"), os.environ.get("PKG_CONFIG_PATH")]))


def by_cmake(options, work):
    prefix = install(options.build_root, work)
    return build_with_cmake(options, work, f"-DCMAKE_PREFIX_PATH={prefix}")


def with_sources_in_cmake(options, work):
    # As hvd's users build it: where this build has no MPI, theirs looks for none.
    program = build_with_cmake(options, work, f"-DHVD_SOURCE={options.source_root}", f"-DHVD_WITH_MPI={'ON' if options.mpicxx else 'OFF'}")
    if list(work.rglob("libhvd*")):
        sys.exit("hvd builds a library that nobody asked for")
    if options.how == "subdirectory":
        run("cmake", "--build", work / "build", "--target", "training")
        run(work / "build/training")
    return program


def build_with_cmake(options, work, *settings):
    chosen = [f"-DMPI_CXX_COMPILER={options.mpicxx}"] if options.mpicxx else []
    run("cmake", "-S", HERE / options.how, "-B", work / "build", *settings, *chosen)
    run("cmake", "--build", work / "build")
    run(work / "build/threads_only")
    run(work / "build/headers_only")
    return work / "build/program"


def by_pkg_config(options, work):
    pkg_config(install(options.build_root, work))
    flags = output_of("pkg-config", "--cflags", "--libs", "hvd")
    run(*CXX, *FLAGS, HERE / "program.cpp", "-o", work / "program", *flags)
    return work / "program"


def by_meson(options, work):
    pkg_config(install(options.build_root, work))
    return build_with_meson(work)


def as_subproject(options, work):
    hvd = work / "source/subprojects/hvd"
    hvd.mkdir(parents=True)
    link_sources(options, hvd)
    program = build_with_meson(work, "--force-fallback-for=hvd", f"-Dhvd:mpi_flavour={options.flavour}")
    targets = json.loads(" ".join(output_of("meson", "introspect", work / "build", "--targets")))
    if any(target["subproject"] for target in targets):
        sys.exit("hvd builds targets of its own as a subproject")
    return program


def as_compiled_subproject(options, work):
    hvd = work / "source/subprojects/hvd"
    hvd.mkdir(parents=True)
    link_sources(options, hvd)
    os.environ["PKG_CONFIG_PATH"] = str(work)  # an installed one is somewhere else
    return build_with_meson(work, "-Dname=hvd-compiled", "-Dhvd:compiled=enabled", "-Dhvd:optimization=0",
                            f"-Dhvd:mpi={'enabled' if options.mpiexec else 'disabled'}", f"-Dhvd:mpi_flavour={options.flavour}",
                            "--force-fallback-for=hvd-compiled")


def link_sources(options, hvd):
    for name in ("meson.build", "meson_options.txt", "include", "src", "cmake", "tools"):
        (hvd / name).symlink_to(options.source_root / name)


def in_compiled_form(options, work):
    """libhvd, static and shared, from each of the build systems; gives the last program."""
    prefix = install_compiled(options, work)
    libraries = next(prefix.rglob("libhvd.a")).parent
    os.environ["LD_LIBRARY_PATH"] = str(libraries)
    os.environ["PKG_CONFIG_PATH"] = str(libraries / "pkgconfig")
    for kind in ("static", "shared"):
        (work / kind).mkdir()
        for program in (compiled_by_cmake, compiled_by_pkg_config, units_of_both_forms):
            run_all(options, *program(options, work / kind, libraries, prefix, kind))
    return build_with_meson(work, "-Dname=hvd-compiled")


def install_compiled(options, work):
    run("meson", "setup", work / "hvd", options.source_root, "-Dcompiled=enabled", "-Dhvdrun=disabled", "-Dtrace_tool=disabled", "-Dcompute_tool=disabled", "-Dinfo_tool=disabled", "-Ddefault_library=both", "-Ddebug=false",
        "-Doptimization=0", f"-Dmpi={'enabled' if options.mpiexec else 'disabled'}", f"-Dmpi_flavour={options.flavour}")
    run("meson", "install", "-C", work / "hvd", "--quiet", "--destdir", work / "installed")
    return next((work / "installed").rglob("share/cmake")).parent.parent


def compiled_by_cmake(options, work, _, prefix, kind):
    chosen = [f"-DMPI_CXX_COMPILER={options.mpicxx}"] if options.mpicxx else []
    run("cmake", "-S", HERE / "compiled", "-B", work / "build", f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DHVD_STATIC={'ON' if kind == 'static' else 'OFF'}", *chosen)
    run("cmake", "--build", work / "build")
    return work / "build/program", work / "build/training"


def beside_own_files(options, work):
    """The files of src/ with the program's own flags, as docs/guide/compiled_form.md says."""
    flags = [*FLAGS, "-pthread", "-DHVD_COMPILED", "-DHVD_WITH_MPI=0", "-I", options.source_root / "include"]

    def compiled(source):
        run(*CXX, *flags, "-c", source, "-o", work / f"{source.parent.name}_{source.stem}.o")
        return work / f"{source.parent.name}_{source.stem}.o"

    once = [compiled(options.source_root / f"src/{name}.cpp") for name in ("threads", "tcp", "train")]
    for name in ("training", "engine_without_mpi"):
        run(*CXX, "-pthread", compiled(HERE / f"{name}.cpp"), *once, "-o", work / name)
    leaves_to_the_library(work / f"{HERE.name}_engine_without_mpi.o", "communicator<hvd::v0::tcp>::world(", "engine<hvd::v0::tcp, void>::engine(")
    run(work / "training")
    return work / "engine_without_mpi"


def leaves_to_the_library(unit, *functions):
    """The functions are not compiled in the unit, which needs them: that takes most of the time."""
    needed = run("nm", "-uC", unit, stdout=subprocess.PIPE, text=True).stdout
    if missing := [each for each in functions if each not in needed]:
        sys.exit(f"{unit.name} compiles what libhvd holds: {missing}")


def flags_of_libhvd(libraries, kind):
    flags = output_of("pkg-config", "--cflags", "--libs", "hvd-compiled")
    return [libraries / "libhvd.a" if flag == "-lhvd" and kind == "static" else flag for flag in flags]


def compiled_by_pkg_config(_, work, libraries, __, kind):
    for name in ("program", "training"):
        run(*CXX, *FLAGS, "-fvisibility=hidden", HERE / f"{name}.cpp", "-o", work / name, *flags_of_libhvd(libraries, kind))
    return work / "program", work / "training"


def units_of_both_forms(_, work, libraries, __, kind):
    """One program of a unit in the compiled form and a header-only one."""
    units = HERE.parent / "headers"
    flags = flags_of_libhvd(libraries, kind)
    compiled = output_of("pkg-config", "--cflags", "hvd-compiled")
    header_only = [flag for flag in compiled if flag != "-DHVD_COMPILED"]
    run(*CXX, *FLAGS, "-c", units / "different_flags.cpp", "-o", work / "compiled.o", *compiled)
    run(*CXX, *FLAGS, "-O2", "-c", units / "different_flags_other.cpp", "-o", work / "header_only.o", *header_only)
    run(*CXX, work / "compiled.o", work / "header_only.o", "-o", work / "both", *flags)
    run(*CXX, work / "header_only.o", work / "compiled.o", "-o", work / "both_turned", *flags)
    return work / "both", work / "both_turned"


def run_all(options, *programs):
    for program in programs:
        run(program)
        if options.mpiexec and program.name == "program":
            run(*options.mpiexec, "-n", "2", program, "mpi", "2")


def build_with_meson(work, *arguments):
    source = work / "source"
    source.mkdir(exist_ok=True)
    for name in ("meson.build", "meson_options.txt"):
        shutil.copy(HERE / "meson" / name, source)
    shutil.copy(HERE / "program.cpp", source)
    run("meson", "setup", work / "build", source, *arguments)
    run("ninja", "-C", work / "build")
    return work / "build/program"


def with_nothing(options, work):
    return compile_with_include_path(options, work, options.source_root / "include")


def after_install_from_sources(options, work):
    run("meson", "setup", work / "build", options.source_root, "-Dhvdrun=disabled", "-Dtrace_tool=disabled", "-Dcompute_tool=disabled", "-Dinfo_tool=disabled")
    run("meson", "install", "-C", work / "build", "--quiet", "--destdir", work / "installed")
    if made := sorted(str(file) for kind in ("o", "a", "so*") for file in (work / "build").rglob(f"*.{kind}")):
        sys.exit("meson install compiled: " + ", ".join(made))
    return compile_with_include_path(options, work, next((work / "installed").rglob("include")))


def compile_with_include_path(options, work, include):
    run(*CXX, *FLAGS, "-pthread", "-I", include, HERE / "program.cpp", "-o", work / "program")
    options.mpiexec = []  # the compiler finds no <mpi.h> by itself, so this program has threads alone
    return work / "program"


HOW = {"cmake": by_cmake, "fetch": with_sources_in_cmake, "subdirectory": with_sources_in_cmake, "pkg_config": by_pkg_config,
       "meson": by_meson, "compiled": in_compiled_form, "compiled_sources": beside_own_files, "compiled_subproject": as_compiled_subproject, "subproject": as_subproject, "fresh": after_install_from_sources, "bare": with_nothing}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=HOW)
    parser.add_argument("source_root", type=pathlib.Path)
    parser.add_argument("build_root", type=pathlib.Path)
    parser.add_argument("--flavour", default="auto")
    parser.add_argument("--mpicxx")
    parser.add_argument("--mpiexec", nargs=argparse.REMAINDER, default=[])
    options = parser.parse_args()

    work = options.build_root / "tests/consumer" / options.how
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    run_all(options, HOW[options.how](options, work))


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"failed: {error}")
