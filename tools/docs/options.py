#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Writes docs/reference/options.md: every public struct of options with its members in their order: options.py

Type, default and comment are those of the headers. A default that is a constant of core/tuning.hpp is shown as its value."""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import surface  # noqa: E402

STRUCT = re.compile(r"^(?:template <[^\n]*>\n)?struct (?:HVD_API )?(\w+)(?: : (\w+))? \{\n(.*?)^\};", re.M | re.S)
IS_OPTIONS = re.compile(r"options$|^bounds$|^engine_tuning$|^service_config$|^sgd$|^adamw?$|^adadelta$|^loss_scale$")
MEMBER = re.compile(r"^(?P<type>[\w:<>, *&()]+?[ >*&])(?P<name>\w+)(?: = (?P<default>.*))?$", re.S)
UNITS = [("time_limit", "a time, or `hvd::forever`"), ("time_span", "a time")]
# Structs of options that no user fills in.
LEFT_OUT = set()
BEGIN = """# Options

Every struct of options, with its members in their order. They are aggregates: name the members that you set, in this order, as in `{.name = "loss", .timeout = 30s}`. A member that is not
named has the default. `tools/docs/options.py` makes this page of the headers.

A *time* is a `std::chrono` duration, such as `30s`; `hvd::forever` is a limit that never passes. A member that ends in `_bytes` counts bytes. [Settings](settings.md#every-setting) has the variable of each
setting that can come from the environment.
"""


def constants(root):
    """Returns the numbers of the thresholds, by name."""
    found = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "second": 10**9, "millisecond": 10**6}
    text = "".join((root / "include/hvd/core" / file).read_text() for file in ("tuning.hpp", "tuning_options.hpp"))
    written = dict(re.findall(r"constexpr [\w:]+ (\w+) = ([^;{]+);", text))
    for _ in range(4):
        for name, value in written.items():
            if (number := number_of(value, found)) is not None:
                found.setdefault(name, number)
    return found


def number_of(text, known):
    """Returns the value of a product or sum of numbers and constants, or None."""
    text = re.sub(r"(?:hvd::)?(?:detail::)?tuning::", "", text.replace("'", ""))
    text = re.sub(r"std::(?:size_t|int64_t|uint64_t|ptrdiff_t)\((\d+)\)", r"\1", text)
    text = re.sub(r"[A-Za-z_]\w*", lambda found: str(known.get(found[0], found[0])), text)
    return eval(text) if re.fullmatch(r"[\d\s*+()<-]+", text) else None  # of numbers alone


def shown(value, known, name=""):
    """Returns a default as a reader would write it."""
    value = re.sub(r"\s*//.*", "", value).strip().rstrip(",").replace(":: ", "::")
    if found := re.fullmatch(r"time_span::of_nanoseconds\((.*)\)", value):
        nanoseconds = number_of(found[1], known)
        return f"`{nanoseconds / 1e9:g} s`" if nanoseconds is not None else f"`{value}`"
    is_number = re.search(r"\b(tuning::|KiB|MiB|GiB|windows)|<<", value)
    if is_number and (number := number_of(value, known)) is not None:
        unit = next(((size, unit) for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")) if number and number % size == 0), (1, "bytes"))
        return f"{number // unit[0]} {unit[1]}"
    value = re.sub(r"^R\((.*)\)$", r"\1", value)
    return {"{}": "", '""': "", "": ""}.get(value, f"`{value}`")


def members(body, known):
    """Yields (name, type, default, comment) of each member."""
    comment, code = [], ""
    depth = 0
    for line in body.splitlines():
        stripped = line.strip()
        if stripped.startswith("///"):
            comment.append(stripped.lstrip("/").strip())
            continue
        if stripped.startswith("//") or not stripped:
            if not stripped and not code:
                comment = []
            continue
        head, found, after = stripped.partition("///<")
        if found:
            comment.append(after.strip())
            stripped = head.strip()
        code += " " + stripped
        depth += stripped.count("{") + stripped.count("(") - stripped.count("}") - stripped.count(")")
        if depth > 0 or not stripped.endswith((";", "}")):
            continue
        declaration, code = code.strip(), ""
        said, comment = " ".join(comment), []
        if declaration.endswith("}") and "(" in declaration:
            return  # data members stand before the functions
        if not declaration.endswith(";") or re.match(r"(template|using|static|friend|constexpr|requires|bool operator|auto operator|explicit|operator)\b", declaration) or "operator" in declaration:
            continue
        plain = declaration.rstrip(";").strip()
        plain, *others = re.split(r",\s*(?=\w+ = )", plain)
        more = [tuple(other.split(" = ")) for other in others]
        if found := MEMBER.match(plain):
            if "(" in found["type"] and "function" not in found["type"]:
                continue
            for name, default in [(found["name"], found["default"] or ""), *more]:
                yield name, found["type"].strip(), shown(default, known), said


def choices(root):
    """Returns the values of each enumeration, by its name."""
    found = {}
    for header in (root / "include/hvd").rglob("*.hpp"):
        for name, body in re.findall(r"^enum class (\w+)[^{;]*\{(.*?)\}", header.read_text(), re.M | re.S):
            values = re.findall(r"^\s*(\w+)(?: = [^,]*)?(?:,|$)", re.sub(r"//.*", "", body), re.M) or re.findall(r"\w+", re.sub(r"//.*", "", body))
            found[name] = values
    return found


def taken(kind, values):
    if (short := kind.rpartition("::")[2]) in values and len(values[short]) < 9:
        return f"`{kind}`: " + ", ".join(f"`{value}`" for value in values[short])
    kind = {"R": "float, or double for tensors of double", "slots<R>": "state of each parameter"}.get(kind, f"`{kind}`")
    return next((text for name, text in UNITS if re.fullmatch(rf"`(?:\w+::)*{name}`", kind)), kind)


def text_of(comment):
    comment = re.sub(r" ?@(?:snippet|throws|see)\b.*", "", comment)
    comment = re.sub(r"\*\*(\w+)\*\*", r"\1", comment).replace("|", "\\|").strip()
    return comment[:1].upper() + comment[1:] + ("" if not comment or comment.endswith((".", "`")) else ".")


def structs(root):
    """Returns the public structs of options: name → (door, base, sentence, members)."""
    include, known = (root / "include/hvd").resolve(), constants(root)
    seen, found = set(), {}
    for door in surface.DOORS + sorted(str(file.relative_to(include)) for file in (include / "interop").glob("*.hpp")):
        if not (include / door).is_file():
            continue
        for path in surface.brought(include, door, seen):
            text = path.read_text()
            public = {name: (f"{namespace}::{name}", line) for namespace, holder, name, line in surface.names_of(path) if not holder}
            for name, base, body in STRUCT.findall(text):
                if IS_OPTIONS.search(name) and name in public and public[name][0] not in found:
                    found[public[name][0]] = (door, base, public[name][1], list(members(body, known)))
    return found


def page(root):
    parts, values = [BEGIN], choices(root)
    for full, (door, base, sentence, rows) in sorted(structs(root).items()):
        parts.append(f"\n## {full}\n\n{sentence}{'' if sentence.endswith('.') else '.'} Header: `hvd/{door}`." + (f" It also has the members of `{base}`." if base else "") + "\n")
        parts.append("\n| member | takes | default | meaning |\n|---|---|---|---|\n")
        parts += [f"| `.{name}` | {taken(kind, values)} | {default} | {text_of(comment)} |\n" for name, kind, default, comment in rows]
    return "".join(parts)


if __name__ == "__main__":
    root = pathlib.Path(__file__).resolve().parents[2]
    (root / "docs/reference").mkdir(exist_ok=True)
    (root / "docs/reference/options.md").write_text(page(root))
