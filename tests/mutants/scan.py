# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Finds the bodies of functions in C++ text that is formatted as by ./run format."""

import re

NO_CODE = re.compile(r"""
    //[^\n]* | /\*.*?\*/ |                            # comments
    ^[ \t]*\#(?:\\\n|[^\n])* |                        # lines of the preprocessor
    R"(?P<raw>[^(\s]*)\(.*?\)(?P=raw)" |              # strings
    "(?:\\.|[^"\\\n])*" | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'
    """, re.VERBOSE | re.DOTALL | re.MULTILINE)
TYPE = re.compile(r"(?:^|[\s>])(?:class|struct|union|enum)\s+(?:class\s+)?[\w:\[\]]")
TEMPLATE = re.compile(r"template\s*<(?:[^<>]|<[^<>]*>)*>")
REQUIRES = re.compile(r"\brequires\s*(?:\([^()]*\))?\s*$|\bconcept\b")
NAME = re.compile(r"([\w:~]+)\s*\(")


def without_texts(text):
    """The same text, in which comments and lines of the preprocessor are blank, and strings are underscores."""
    def covered(found):
        filler = "_" if found[0][0] in "\"'R" else " "
        return re.sub(r"[^\n]", filler, found[0])
    return NO_CODE.sub(covered, text)


def kind_of(head, outer):
    """What a brace opens: a "body", a "type", a "namespace", or "other"."""
    if REQUIRES.search(head) or outer == "other":
        return "other"
    if re.search(r"\bnamespace\b", head):
        return "namespace"
    plain = TEMPLATE.sub(" ", head)
    if TYPE.search(plain) and "(" not in plain:
        return "type" if not re.search(r"\benum\b", plain) else "other"
    if outer == "body":
        return "body"
    return "body" if "(" in plain and not re.search(r"=\s*$", plain) else "other"


def bodies(code):
    """For each character of the text without texts: the head of the function it is in, or None."""
    result, stack, head, nearest = [], [("namespace", None)], "", None
    for at, sign in enumerate(code):
        result.append(nearest)
        if sign == "{":
            kind = kind_of(head, stack[-1][0])
            # A lambda or a block is part of the function around it.
            function = (nearest or " ".join(TEMPLATE.sub(" ", head).split())) if kind == "body" else None
            stack.append((kind, function))
            head = ""
        elif sign == "}" and len(stack) > 1:
            kind, function = stack.pop()
            # The braces of a member in a constructor's list: the body is yet to come.
            has_more = kind == "body" and stack[-1][0] != "body" and re.match(r"\s*[,{]", code[at + 1:at + 200])
            head = function if has_more else ""
        elif sign == ";":
            head = ""
        else:
            head += sign
        nearest = stack[-1][1] if stack[-1][0] == "body" else None
    return result


def name_of(head):
    """The name of the function with that head."""
    found = NAME.search(re.sub(r"\b(?:requires|decltype|noexcept|explicit|alignas)\s*\(", " ", head))
    return found[1] if found else "a function"
