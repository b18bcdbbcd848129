#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The files of packages, images and hosted services fit the sources: they have one version, name what exists, and can be read."""

import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(os.environ["HVD_SOURCE"])
VERSION = os.environ["HVD_VERSION"]
sys.path.insert(0, str(ROOT / "tests/launcher"))
import mpi_job  # noqa: E402


def text_of(name):
    return (ROOT / name).read_text()


def yaml_of(test, name):
    try:
        import yaml
    except ImportError:
        test.skipTest("python3-yaml is not installed")
    return yaml.safe_load(text_of(name))


class Files(unittest.TestCase):
    def test_all_files_have_the_version_of_the_build_system(self):
        found = {
            "include/hvd/version.hpp": re.search(r'HVD_VERSION_STRING "(.*)"', text_of("include/hvd/version.hpp"))[1],
            "packaging/vcpkg/ports/hvd/vcpkg.json": json.loads(text_of("packaging/vcpkg/ports/hvd/vcpkg.json"))["version-semver"],
            "packaging/apptainer/hvd.def": re.search(r"^    Version (.*)$", text_of("packaging/apptainer/hvd.def"), re.M)[1],
            "CITATION.cff": re.search(r"^version: (.*)$", text_of("CITATION.cff"), re.M)[1],
            "debian/changelog": re.match(r"hvd \((.*)-\d+\)", text_of("debian/changelog"))[1],
            "CHANGELOG.md": re.search(r"^## (\S+)", text_of("CHANGELOG.md"), re.M)[1],
            "README.md": re.search(r"^- Version (\S+)\. ", text_of("README.md"), re.M)[1],
        }
        self.assertEqual({name: VERSION for name in found}, found)

    def test_the_debian_package_of_the_library_has_its_soname(self):
        major, minor, _ = VERSION.split(".")
        package = "libhvd" + (f"0.{minor}" if major == "0" else major)
        self.assertIn(f"Package: {package}\n", text_of("debian/control"))
        self.assertTrue((ROOT / f"debian/{package}.install").is_file())
        self.assertIn(f"Depends: {package} (= ${{binary:Version}})", text_of("debian/control"))

    def test_scripts_can_be_read_by_their_shells(self):
        for shell, name in (("bash", "tools/container.sh"), ("sh", "debian/tests/programs-of-the-readme")):
            with self.subTest(script=name):
                self.assertTrue(os.access(ROOT / name, os.X_OK), "it is not executable")
                subprocess.run([shell, "-n", ROOT / name], check=True)

    def test_images_are_made_by_hvds_own_set_up(self):
        for name in ("Dockerfile", "packaging/apptainer/hvd.def"):
            self.assertRegex(text_of(name), r"(?m)^(RUN .*|    )/opt/hvd/tools/container\.sh$", name)
        self.assertIn("source tools/setup.sh", text_of("tools/container.sh"))

    def test_the_definition_copies_what_exists_and_the_trainer_needs(self):
        files = re.search(r"^%files\n((?:    .*\n)+)", text_of("packaging/apptainer/hvd.def"), re.M)[1].split()
        for source, target in zip(files[::2], files[1::2], strict=True):
            self.assertTrue((ROOT / source).exists(), source)
            self.assertEqual(f"/opt/hvd/{source}", target)
        self.assertLessEqual({"meson.build", "meson_options.txt", "include", "src", "cmake", "tools", "subprojects", "examples"}, set(files[::2]))

    def test_instructions_of_dockerfiles_exist(self):
        for name in ("Dockerfile", "packaging/kubernetes/Dockerfile"):
            joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text_of(name), flags=re.M))
            words = [line.split()[0] for line in joined.splitlines() if line.strip()]
            self.assertLessEqual(set(words), {"ARG", "FROM", "COPY", "RUN", "ENV", "CMD"}, name)
            self.assertEqual(words[:2], ["ARG", "FROM"], name)

    def test_the_hosted_workflow_calls_run_test(self):
        workflow = yaml_of(self, ".github/workflows/test.yml")
        (job,) = workflow["jobs"].values()
        self.assertIn("./run test", [step.get("run") for step in job["steps"]])
        self.assertEqual(workflow["permissions"], {"contents": "read"})
        for step in job["steps"]:
            self.assertEqual(("uses" in step) + ("run" in step), 1, step)

    def test_the_job_for_kubernetes_fits_the_schema_of_the_operator(self):
        job = yaml_of(self, "packaging/kubernetes/mpijob.yaml")
        self.assertEqual(mpi_job.faults(job), [])
        job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["volumeMount"] = []
        self.assertEqual(len(mpi_job.faults(job)), 1)


if __name__ == "__main__":
    unittest.main()
