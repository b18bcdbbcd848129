# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""conan create packaging/conan: the headers of this folder's sources as a package of Conan 2.

MPI is the system's: Conan has no package of it. The option with_mpi says whether programs are to link it."""

import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy, load
from conan.tools.layout import basic_layout

SOURCES = ("include/*", "LICENSE")


class Hvd(ConanFile):
    name = "hvd"
    description = "Typed collectives for trainers in C++: threads, MPI, TCP and NCCL"
    license = "Apache-2.0"
    topics = ("mpi", "allreduce", "machine-learning", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"with_mpi": [True, False]}
    default_options = {"with_mpi": False}
    no_copy_source = True

    @property
    def _root(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        header = load(self, os.path.join(self._root, "include/hvd/version.hpp"))
        self.version = re.search(r'HVD_VERSION_STRING "(.*)"', header)[1]

    def export_sources(self):
        for pattern in SOURCES:
            copy(self, pattern, self._root, self.export_sources_folder)

    def layout(self):
        basic_layout(self)

    def validate(self):
        check_min_cppstd(self, 20)
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("hvd runs on Linux")

    def package_id(self):
        self.info.clear()  # headers are the same for all

    def package(self):
        copy(self, "include/*", self.source_folder, self.package_folder)
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        self.cpp_info.bindirs = self.cpp_info.libdirs = []
        self.cpp_info.system_libs = ["pthread"]
        self.cpp_info.defines = [f"HVD_WITH_MPI={int(bool(self.options.with_mpi))}"]
        self.cpp_info.set_property("cmake_file_name", "hvd")
        self.cpp_info.set_property("cmake_target_name", "hvd::hvd")
        self.cpp_info.set_property("cmake_target_aliases", [] if self.options.with_mpi else ["hvd::threads"])
