#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Lists the public names that the headers declare: public_names.py SOURCE_ROOT

A small reader of C++ declarations: it follows braces, namespaces and classes. Public is what is declared in namespace hvd, outside
of detail and of classes. It reads the sources itself, so that it finds what the documentation's generator leaves out."""

import pathlib
import re
import sys

TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', re.M | re.S)
NAMESPACE = re.compile(r"(?:inline\s+)?namespace\s+((?:::|\binline\s|\w)*)$")
TYPE = re.compile(r"\b(?:class|struct|enum(?:\s+class|\s+struct)?|union)\s+(?:\[\[[^\]]*\]\]\s*)?(?:alignas\([^)]*\)\s*)?(\w+)\s*(<)?")
LABELS = re.compile(r"^(?:\s*(?:public|private|protected)\s*:)+")
# The definition of a member that stands outside of its class.
OF_CLASS = re.compile(r"[^(=]*?\b(\w+)(?:<[^<>()]*>)?::(\w+)\s*\(")
CALLABLE_WORDS = {"operator", "requires", "noexcept", "decltype", "alignas", "static_assert", "explicit", "if", "sizeof"}


def heads(text):
    """Yields (scopes, head, has_body) of each declaration that is in no body of a function. A scope is a pair: "namespace" or "class",
    and its name. The head ends at the body or the semicolon."""
    text = re.sub(r"\bHVD_[A-Z_]+\b", " ", text)
    text = TOKEN.sub(lambda found: '""' if found[0][0] == '"' else " ", text)
    text = re.sub(r"=\s*[\w:]*\{[^{};]*\}", "= 0", text)  # an argument's default is no body
    scopes, head = [], ""
    for part in re.split(r"([{};])", text):
        inside = bool(scopes) and scopes[-1][0] == "body"
        if part == "{":
            scope = ("body", "") if inside else scope_of(head)
            if not inside and scope[0] != "namespace":
                yield scopes[:], head, True
            scopes.append(scope)
            if scope[0] != "body":
                head = ""
        elif part == "}":
            if scopes.pop()[0] != "namespace" and not (scopes and scopes[-1][0] == "body"):
                head = ""
        elif part == ";":
            if not inside and head.strip():
                yield scopes[:], head, False
            if not inside:
                head = ""
        elif not inside:
            head += part


def scope_of(head):
    head = LABELS.sub("", head)
    if found := NAMESPACE.search(head.strip()):
        return "namespace", found[1].replace("inline ", "")
    found = TYPE.match(without_requirements(without_templates(head)))
    return ("class", found[1]) if found and not found[0].startswith("enum") else ("body", "")


def declarations(text):
    """Yields (namespaces, head) of each declaration at namespace scope."""
    for scopes, head, _ in heads(text):
        if all(kind == "namespace" for kind, _ in scopes):
            yield [name for _, name in scopes], head


def defined_names(text):
    """Returns what a file defines, without the namespaces: function, class, class::function."""
    names = set()
    for scopes, head, has_body in heads(text):
        path = [name for kind, name in scopes if kind == "class"]
        head = LABELS.sub("", head)
        if not has_body and ("(" in head or TYPE.match(without_templates(head))) and "=" not in head:
            continue  # it is only declared
        if found := OF_CLASS.match(re.split(r"\s:\s", without_templates(head))[0]):
            names.add(f"{found[1]}::{found[2]}")
        elif scope_of(head)[0] == "class":
            names.add("::".join([*path, scope_of(head)[1]]))
        elif name := name_of(head):
            names.add("::".join([*path, name]))
    return names


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


def without_requirements(head):
    return re.sub(r"^requires .*?(?=\b(?:struct|class|union)\b)", "", head)


def name_of(head):
    is_template_specialisation = re.match(r"\s*template\s*<\s*>", head)
    head = re.sub(r"^\[\[.*?\]\]\s*", "", without_templates(head))
    if re.match(r"\w+\.|&&|\|\|", head):
        return None  # a requirement of a concept
    if not head or is_template_specialisation or re.match(r"(extern|friend|static_assert|using namespace|template)\b", head):
        return None
    if found := re.match(r"concept (\w+)", head) or re.match(r"using (\w+) =", head):
        return found[1]
    if found := re.match(r"using [\w:]*?(\w+)$", head):
        return found[1]
    head = without_requirements(head)
    if re.match(r"(?:class|struct|enum|union)\b", head):
        found = TYPE.match(head)
        return None if not found or found[2] else found[1]
    before = re.split(r"(?<![=!<>])=(?!=)", head)[0]
    before = re.sub(r"\bfunction<.*?\)>", "function", before)  # of a member such as std::function<void(int)> then
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
