# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Reads which header under include/hvd includes which. Files are named by their path there: core/dtype.hpp."""

import functools
import pathlib
import posixpath
import re

LINE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


class Headers:
    def __init__(self, include_dir):
        self.root = pathlib.Path(include_dir) / "hvd"
        self.files = sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*.[hc][pu][ph]"))
        self.own, self.foreign = {}, {}
        for file in self.files:
            found = LINE.findall((self.root / file).read_text())
            self.own[file] = sorted(self._resolve(file, quote, name) for quote, name in found
                                    if quote == '"' or name.startswith("hvd/"))
            self.foreign[file] = sorted(name for quote, name in found if quote == "<" and not name.startswith("hvd/"))

    @staticmethod
    def _resolve(file, quote, name):
        if name.startswith("hvd/"):
            return name.removeprefix("hvd/")
        return posixpath.normpath(posixpath.join(posixpath.dirname(file), name))

    @functools.lru_cache(maxsize=None)
    def reach(self, file):
        """Returns all of hvd's files that this one includes, itself among them."""
        seen, todo = set(), [file]
        while todo:
            here = todo.pop()
            if here not in seen:
                seen.add(here)
                todo += self.own.get(here, [])
        return frozenset(seen)

    def doors(self):
        return [file for file in self.files if "/" not in file and file.endswith(".hpp") and file not in ("version.hpp", "fwd.hpp", "standard.hpp")]
