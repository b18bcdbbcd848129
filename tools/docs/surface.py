#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Writes docs/surface.md: every public name of the headers once, below the door that brings it: surface.py

A name is what a /// comment stands above, outside of detail. Its line is the first sentence of the comment. The members of a class
that have comments are named below it."""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from public_names import name_of, without_templates

# The doors from the smallest to those that include others: a name belongs to the first that brings it.
DOORS = ["communicator.hpp", "threads.hpp", "mpi.hpp", "settings.hpp", "tcp.hpp", "arena.hpp", "checked.hpp", "observed.hpp", "hvd.hpp", "data.hpp", "data_formats.hpp", "train.hpp", "checkpoint.hpp", "data_service.hpp", "statistics.hpp", "prometheus.hpp", "timeline.hpp", "build_info.hpp",
         "engine.hpp", "train_engine.hpp", "autotune.hpp", "elastic.hpp", "elastic_mpi.hpp", "cuda.hpp", "nccl.hpp",
         "train_device.hpp", "engine_device.hpp", "elastic_nccl.hpp", "data_device.hpp"]
OF_COMMUNICATOR = re.compile(r"(?:\w+_calls|placed_rank)")
CLASS = re.compile(r"(?:requires .*?)?\b(?:class|struct|enum class) (?:\[\[.*?\]\] ?)?(?:HVD_API )?(\w+)")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
BEGIN = """# Surface

Every public name once, below the door that brings it, with the first sentence of its comment. `tools/docs/surface.py` makes this page of the
headers. [Concepts](concepts.md) and [Training](training.md) explain how they work together.
"""


def brought(root, file, seen):
    """The headers that a header includes, itself the last, in the order of inclusion."""
    path = (root / file).resolve()
    if path in seen or not path.is_file() or path.name.endswith("library.hpp"):
        return
    seen.add(path)
    for name in INCLUDE.findall(path.read_text()):
        yield from brought(root, (path.parent / name).resolve().relative_to(root), seen)
    yield path


def sentence(comment):
    """The first sentence of a comment."""
    text = " ".join(line.strip()[3:].strip() for line in comment)
    text = text.lstrip("<").strip()
    text = re.split(r" (?:@\w+|\*\*\w)", text)[0]
    return re.split(r"(?<=[.:!?])\s+(?=[A-Z`])", text)[0].rstrip(":").replace("|", "\\|")


def declared(lines, at):
    """The declaration that begins at a line, to its body or semicolon."""
    head, depth = "", 0
    for line in lines[at:]:
        for c in line.split("//")[0]:
            depth += {"(": 1, ")": -1}.get(c, 0)
            if c in "{;" and depth <= 0:
                return head
            head += c
        head += "\n"
    return head


def name_at(lines, at):
    if found := re.match(r"#define (\w+)", lines[at]):
        return found[1]
    head = re.sub(r"\bHVD_API\b|\[\[[^\]]*\]\]", "", declared(lines, at))
    return name_of(head)


def is_public(namespaces, holder):
    """The collectives of a communicator are members of its base classes, which are in detail."""
    inside = "::".join(namespaces)
    return inside.startswith("hvd") and ("detail" not in inside or OF_COMMUNICATOR.fullmatch(holder))


def names_of(path):
    """Yields (namespace, class, name, sentence) of each declaration with a /// comment."""
    lines = path.read_text().splitlines()
    namespaces, comment, holder = [], [], ""
    for at, line in enumerate(lines):
        stripped, indent = line.strip(), len(line) - len(line.lstrip())
        if found := re.match(r"(?:inline )?namespace ([\w:]+(?:::inline v0[\w:]*)?) \{$", stripped):
            namespaces.append(found[1].replace("::inline v0", ""))
        elif stripped.startswith("}  // namespace") or (stripped == "}" and re.match(r"namespace \w+ \{", lines[at - 2])):
            namespaces.pop()  # that of one line has no comment behind it
        elif re.match(r"///(?: |$)", stripped):
            comment.append(stripped)
            continue
        elif not stripped or stripped.startswith(("//", "#pragma")):
            continue
        elif indent == 0 and (found := CLASS.match(without_templates(declared(lines, at)))):
            holder = found[1]
        described = comment or ([stripped[stripped.index("///<") :]] if "  ///<" in line else [])
        comment = []
        if not described or not is_public(namespaces, holder) or re.match(r"(?:inline )?namespace|\}", stripped):
            continue
        if (indent > 0 or "detail" not in "::".join(namespaces)) and (name := name_at(lines, at)):
            yield "::".join(namespaces), holder if indent > 0 else "", name, sentence(described)


def page(root):
    include = (root / "include/hvd").resolve()
    seen, known, text = set(), {}, BEGIN
    for door in DOORS + sorted(str(file.relative_to(include)) for file in (include / "interop").glob("*.hpp")):
        if not (include / door).is_file():
            continue
        rows, members = {}, {}
        for path in brought(include, door, seen):
            for namespace, holder, name, line in names_of(path):
                if OF_COMMUNICATOR.fullmatch(holder):
                    namespace, holder = "hvd", "communicator"
                full = f"{namespace}::{holder + '::' if holder else ''}{name}"
                if full in known:
                    continue
                known[full] = True
                if holder:
                    members.setdefault(f"{namespace}::{holder}", []).append(name)
                else:
                    rows[full] = line
        if rows:
            text += f"\n## `hvd/{door}`\n\n| name | |\n|---|---|\n"
            for full, line in sorted(rows.items()):
                inside = " ".join(f"`{m}`" for m in members.get(full, []))
                text += f"| `{full}` | {line}{' Members: ' + inside if inside else ''} |\n"
    return text


if __name__ == "__main__":
    root = pathlib.Path(__file__).resolve().parents[2]
    (root / "docs/surface.md").write_text(page(root))
