#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The files of packages, images and hosted services fit the sources: they have one version, name what exists, and can be read."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import types
import unittest
import unittest.mock

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


# The schema of the Citation File Format 1.2.0, as far as this file can use it: https://citation-file-format.github.io
CITATION_KEYS = {"abstract": str, "authors": list, "cff-version": str, "commit": str, "contact": list, "date-released": object, "doi": str, "identifiers": list, "keywords": list,
                 "license": (str, list), "license-url": str, "message": str, "preferred-citation": dict, "references": list, "repository": str, "repository-artifact": str,
                 "repository-code": str, "title": str, "type": str, "url": str, "version": (str, int, float)}
AUTHOR_KEYS = {"address", "affiliation", "alias", "city", "country", "date-end", "date-start", "email", "family-names", "fax", "given-names", "location", "name", "name-particle",
               "name-suffix", "orcid", "post-code", "region", "tel", "website"}


def faults_of_citation(citation):
    faults = [f"{key} is missing" for key in ("authors", "cff-version", "message", "title") if not citation.get(key)]
    faults += [f"no such key: {key}" for key in citation if key not in CITATION_KEYS]
    faults += [f"{key} has the wrong type" for key, value in citation.items() if key in CITATION_KEYS and not isinstance(value, CITATION_KEYS[key])]
    faults += [f"an author has other keys: {author}" for author in citation.get("authors", []) if not author or not set(author) <= AUTHOR_KEYS]
    faults += [f"no such type: {citation['type']}"] if citation.get("type", "software") not in ("software", "dataset") else []
    faults += [f"no such version: {citation['cff-version']}"] if citation.get("cff-version") != "1.2.0" else []
    return faults


def recipe_of_conan(file):
    """Loads a recipe without Conan, whose modules have a stand-in."""
    names = re.findall(r"^from (conan[\w.]*) import (.*)$", file.read_text(), re.M)
    modules = {name: types.ModuleType(name) for name, _ in names} | {"conan.tools": types.ModuleType("conan.tools")}
    for name, members in names:
        for member in members.split(", "):
            setattr(modules[name], member, type(member, (Exception,), {}) if member != "load" else lambda _, path: pathlib.Path(path).read_text())
    with unittest.mock.patch.dict(sys.modules, modules):
        spec = importlib.util.spec_from_file_location("conanfile", file)
        recipe = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(recipe)
    return recipe


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
        self.assertEqual({VERSION}, set(re.findall(r"\bhvd-(\d+\.\d+\.\d+)", text_of("docs/install.md"))))

    def test_cmake_takes_the_version_of_the_header(self):
        text = text_of("CMakeLists.txt")
        self.assertRegex(text, r"project\(hvd VERSION \$\{hvd_version\} ")
        pattern = re.search(r'string\(REGEX REPLACE "(.*?)" "\\\\1" hvd_version', text)
        line = re.search(r"^.*define HVD_VERSION_STRING.*$", text_of("include/hvd/version.hpp"), re.M)[0]
        self.assertEqual(re.sub(pattern[1].replace('\\"', '"'), r"\1", line), VERSION)

    def test_the_policy_of_security_is_about_this_version(self):
        self.assertIn(f"| {VERSION.rpartition('.')[0]}.x | yes |", text_of("SECURITY.md"))

    def test_the_changelog_has_themes_and_notes_for_an_upgrade(self):
        newest = re.search(r"^## .*?\n(.*?)(?=^## |\Z)", text_of("CHANGELOG.md"), re.M | re.S)[1]
        before, *themes = re.split(r"^### ", newest, flags=re.M)
        self.assertNotIn("\n- ", before, "an entry stands in no theme")
        titles = [theme.partition("\n")[0] for theme in themes]
        self.assertTrue(any(title.startswith("Upgrading") for title in titles), titles)
        self.assertEqual(len(set(titles)), len(titles))
        for theme in themes:
            self.assertRegex(theme, r"\n(- |\w)", theme.partition("\n")[0])

    def test_the_citation_has_the_keys_and_types_of_its_format(self):
        citation = yaml_of(self, "CITATION.cff")
        self.assertEqual(faults_of_citation(citation), [])
        self.assertEqual(len(faults_of_citation({**citation, "licence": "x", "authors": [{"given_name": "A"}], "type": "program"})), 3)
        del citation["message"]
        self.assertEqual(len(faults_of_citation(citation)), 1)

    def test_conans_recipe_has_the_version_and_takes_what_exists(self):
        recipe = recipe_of_conan(ROOT / "packaging/conan/conanfile.py")
        made = recipe.Hvd()
        made.recipe_folder = str(ROOT / "packaging/conan")
        made.set_version()
        self.assertEqual(made.version, VERSION)
        for pattern in recipe.SOURCES:
            self.assertTrue(any(ROOT.glob(pattern)), pattern)

    def test_vcpkgs_port_installs_what_exists(self):
        port = ROOT / "packaging/vcpkg/ports/hvd"
        text = (port / "portfile.cmake").read_text()
        sources, own = (re.findall(rf'"\$\{{{folder}\}}/([^"$]+)"', text) for folder in ("SOURCE_PATH", "CMAKE_CURRENT_LIST_DIR"))
        self.assertLessEqual({"include/hvd", "LICENSE"}, set(sources))
        for name in sources:
            self.assertTrue((ROOT / name).exists(), name)
        for name in own:
            self.assertTrue((port / name).exists(), name)

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
