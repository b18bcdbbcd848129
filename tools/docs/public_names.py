#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Lists the public names that the headers declare: public_names.py SOURCE_ROOT

A small reader of C++ declarations: it follows braces and namespaces, and takes what is declared in namespace hvd, outside of
detail and of classes. It reads the sources itself, so that it finds what the documentation's generator leaves out."""

import pathlib
import re
import sys

TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', re.M | re.S)
NAMESPACE = re.compile(r"(?:inline\s+)?namespace\s+([\w:]*)$")
TYPE = re.compile(r"\b(?:class|struct|enum(?:\s+class|\s+struct)?|union)\s+(?:\[\[[^\]]*\]\]\s*)?(?:alignas\([^)]*\)\s*)?(\w+)\s*(<)?")
CALLABLE_WORDS = {"operator", "requires", "noexcept", "decltype", "alignas", "static_assert", "explicit", "if", "sizeof"}


def declarations(text):
    """Yields (namespaces, head) of each declaration at namespace scope. The head ends at the body or the semicolon."""
    text = re.sub(r"\bHVD_[A-Z_]+\b", " ", text)
    text = TOKEN.sub(lambda found: '""' if found[0][0] == '"' else " ", text)
    text = re.sub(r"=\s*[\w:]*\{[^{};]*\}", "= 0", text)  # an argument's default is no body
    scopes, head = [], ""
    for part in re.split(r"([{};])", text):
        inside = any(kind != "namespace" for kind, _ in scopes)
        if part == "{":
            namespace = NAMESPACE.search(head.strip())
            scopes.append(("namespace", namespace[1]) if namespace and not inside else ("body", ""))
            if not inside and not namespace:
                yield [name for kind, name in scopes[:-1]], head
            if namespace:
                head = ""
        elif part == "}":
            scopes.pop()
            if not any(kind != "namespace" for kind, _ in scopes):
                head = ""
        elif part == ";":
            if not inside and head.strip():
                yield [name for kind, name in scopes], head
            if not inside:
                head = ""
        elif not inside:
            head += part


def without_templates(head):
    """Returns a declaration without the template<…> at its front."""
    head = " ".join(head.split())
    while head.startswith("template"):
        depth, end = 0, head.index("<")
        while True:
            depth += {"<": 1, ">": -1}.get(head[end], 0) if head[end - 1 : end + 1] != "->" else 0
            end += 1
            if depth == 0:
                break
        head = head[end:].strip()
    return head


def name_of(head):
    is_template_specialisation = re.match(r"\s*template\s*<\s*>", head)
    head = without_templates(head)
    if not head or is_template_specialisation or re.match(r"(extern|friend|static_assert|using namespace|template)\b", head):
        return None
    if found := re.match(r"concept (\w+)", head) or re.match(r"using (\w+) =", head):
        return found[1]
    if found := re.match(r"using [\w:]*?(\w+)$", head):
        return found[1]
    head = re.sub(r"^requires .*?(?=\b(?:struct|class|union)\b)", "", head)
    if re.match(r"(?:class|struct|enum|union)\b", head):
        found = TYPE.match(head)
        return None if not found or found[2] else found[1]
    before = re.split(r"(?<![=!<>])=(?!=)", head)[0]
    calls = [word for word in re.findall(r"([\w:]+)\s*\(", before) if word not in CALLABLE_WORDS]
    if "operator" in before or any("::" in word for word in calls[:1]):
        return None
    if calls:
        return calls[0]
    found = re.search(r"[\s&*>](\w+)\s*(?:\[[^\]]*\])?$", before.strip())
    return found[1] if found else None


def public_names(root):
    names = {}
    for header in sorted((root / "include/hvd").rglob("*.hpp")):
        for namespaces, head in declarations(header.read_text()):
            path = [name for namespace in namespaces for name in namespace.split("::") if name != "v0"]
            if path[:1] != ["hvd"] or "detail" in path or "" in path:
                continue
            if name := name_of(head):
                names.setdefault("::".join([*path, name]), header.relative_to(root))
    return names


if __name__ == "__main__":
    for name, header in sorted(public_names(pathlib.Path(sys.argv[1])).items()):
        print(f"{name}  {header}")
