#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""recipes.py HOW SOURCE_ROOT VERSION: the recipes of package managers, as far as they run without their registries.

HOW is vcpkg (CMake runs the port's script as vcpkg does, and a program finds the result), conan (Conan, from its package of Python, makes the
package and builds the program of test_package) or citation (cffconvert reads CITATION.cff)."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


def run(*command, **keywords):
    print("$", *command, flush=True)
    return subprocess.run([str(word) for word in command], check=True, **keywords)


def variables_of_vcpkg(version, work):
    """Those of a port without the feature mpi."""
    return [f"-DCURRENT_PACKAGES_DIR={work}/installed", "-DFEATURES=core", f"-DVERSION={version}"]


def by_vcpkg(source, version, work):
    # vcpkg's own script includes the port's, under the policies of a newer CMake.
    (work / "port.cmake").write_text(f'cmake_minimum_required(VERSION 3.20)\ninclude("{source}/packaging/vcpkg/ports/hvd/portfile.cmake")\n')
    run("cmake", *variables_of_vcpkg(version, work), "-P", work / "port.cmake", stdout=subprocess.DEVNULL)
    for name in ("copyright", "usage", "hvdConfig.cmake", "hvdConfigVersion.cmake", "hvdTargets.cmake"):
        assert (work / "installed/share/hvd" / name).is_file(), name
    program = source / "packaging/conan/test_package"
    run("cmake", "-S", program, "-B", work / "build", f"-DCMAKE_PREFIX_PATH={work}/installed", stdout=subprocess.DEVNULL)
    run("cmake", "--build", work / "build", stdout=subprocess.DEVNULL)
    run(work / "build/train")


def python_with(work, package):
    """A virtual environment with the package and what it needs. The test is skipped if they can't be had."""
    try:
        run(sys.executable, "-m", "venv", work / "environment", timeout=120)
        run(work / "environment/bin/pip", "install", "-q", "--disable-pip-version-check", package, timeout=400)
    except (subprocess.SubprocessError, OSError) as reason:
        print(f"{package} cannot be had: {reason}")
        sys.exit(77)
    return work / "environment/bin"


def by_conan(source, version, work):
    conan = python_with(work, "conan>=2,<3") / "conan"
    sources = work / "hvd"  # Conan writes into the folder of the recipe, and follows no links
    for name in ("include", "packaging/conan"):
        shutil.copytree(source / name, sources / name)
    shutil.copy(source / "LICENSE", sources)
    # Conan looks at the compiler's name, and CMake takes its own, which may have ccache before it.
    environment = {**os.environ, "CONAN_HOME": str(work / "home"), "CXX": os.environ["CXX"].split()[-1]}
    run(conan, "profile", "detect", env=environment, stdout=subprocess.DEVNULL)
    run(conan, "create", sources / "packaging/conan", "-s", "compiler.cppstd=20", "--no-remote", env=environment)
    run(conan, "list", f"hvd/{version}", env=environment)


def by_cffconvert(source, version, work):
    said = run(python_with(work, "cffconvert") / "cffconvert", "--validate", "-i", source / "CITATION.cff", stdout=subprocess.PIPE, text=True).stdout
    assert "valid" in said, said


HOW = {"vcpkg": by_vcpkg, "conan": by_conan, "citation": by_cffconvert}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="hvd-recipes-") as folder:
        HOW[sys.argv[1]](pathlib.Path(sys.argv[2]), sys.argv[3], pathlib.Path(folder))
