# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The changes of one line: each is (kind, the line as it becomes, the line that has both forms, what changes).

`code` is the line without comments and strings (scan.py), `line` is the real one. Both have the same columns."""

import dataclasses
import re

ON = "hvd_mutant::on(#)"  # plant.py puts the number there
SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&"}
OPERATOR = re.compile(r" (<=|>=|==|!=|<|>|&&|\|\|) ")
OFFSET = re.compile(r" [+-] 1\b(?![.'])(?! [*/%])")
NEGATION = re.compile(r"(?<![\w)\]])!(?=[\w(:*])")
EXTREME = re.compile(r"\bstd::(min|max)(?=[(<])")
TRUTH = re.compile(r"(?<![<\w.])\b(true|false)\b(?!>)")
CONDITION = re.compile(r"\bif \(")
RETURN = re.compile(r"\breturn ([^;{}]+);")
CALLED = re.compile(r"[\w:.>\[\]*()-]+\(.*\);$")
ASSIGNED = re.compile(r"[\w:.>\[\]*()-]+ (?:[-+*/%|&^]|<<|>>)?= .*;$")
SHORT = re.compile(r"(?:(?:\+\+|--)[\w.>\[\]-]+|break|continue|return);$")
NO_STATEMENT = re.compile(r"^(?:return \S|throw\b|delete\b|static_cast<void>|HVD_|case\b|if\b|for\b|while\b|switch\b|new\b)")
NOT_HERE = re.compile(r"\b(?:static_assert|requires|template|typename|using|concept|constexpr|consteval|case|operator|typedef|text|usage_error)\b|\[\[")
LEFT = re.compile(r"(?:[,;{]|\breturn |\belse | (?:[-+*/%|&^]|<<|>>)?= | [:?] )$")


@dataclasses.dataclass
class Line:
    line: str      # stripped, as is `code`
    code: str
    before: str    # the code before it, at whose end the statement before it ends, or not
    after: str     # the next line of code
    in_body: list  # for each column
    head: str      # of the function


def left_end(code, at):
    """Where the expression begins that ends before that column, and whether the line tells."""
    depth = 0
    for i in range(at - 1, -1, -1):
        if code[i] in ")]}":
            depth += 1
        elif code[i] in "([{":
            if depth == 0:
                return i + 1, True
            depth -= 1
        elif depth == 0 and (found := LEFT.search(code[:i + 1])):
            return found.end(), True
    return 0, False


def right_end(code, at):
    depth = 0
    for i in range(at, len(code)):
        if code[i] in "([{":
            depth += 1
        elif code[i] in ")]}":
            if depth == 0:
                return i, True
            depth -= 1
        elif depth == 0 and (code[i] in ",;" or code[i:i + 3] in (" ? ", " : ")):
            return i, True
    return len(code), False


def region(l, at, end):
    """The columns of the whole expression around an operator, or None if it does not stand in this line alone."""
    (first, left), (last, right) = left_end(l.code, at), right_end(l.code, end)
    first += len(l.code[first:]) - len(l.code[first:].lstrip())
    joined = re.search(r"( &&| \|\|)$", l.code[:last].rstrip())
    if not right and joined:
        last, right = joined.start(), "||" not in l.code[first:joined.start()]
    if not left:
        left = bool(re.search(r"[;{}(,=?:]\s*$|\breturn\s*$", l.before))
        left = left or bool(re.search(r"(&&|\|\|)\s*$", l.before)) and "||" not in l.code[first:last]
    if not right:
        right = l.after.startswith((")", "?", ":", "]"))
    return (first, last) if left and right and at >= first and last >= end and all(l.in_body[first:last]) else None


def both(l, first, last, changed):
    return f"{l.line[:first]}({ON} ? ({changed}) : ({l.line[first:last]})){l.line[last:]}"


def replaced(l, kind, found, becomes, words, group=0):
    """One operator of an expression becomes another."""
    at, end = found.span(group)
    place = region(l, at, end)
    if place is None:
        return
    first, last = place
    changed = l.line[first:at] + becomes + l.line[end:last]
    yield kind, l.line[:first] + changed + l.line[last:], both(l, first, last, changed), words


def of_operators(l):
    for found in OPERATOR.finditer(l.code):
        old, new = found[1], SWAPS[found[1]]
        if old in ("<", "<=", ">", ">=") and l.code.startswith("for ("):
            continue  # one turn too many reads what is not there, and anything may come of it
        kind = "logic" if old in ("&&", "||") else "equality" if old in ("==", "!=") else "relation"
        yield from replaced(l, kind, found, new, f"`{old}` becomes `{new}`", 1)
    for found in OFFSET.finditer(l.code):
        yield from replaced(l, "offset", found, "", f"`{found[0].strip()}` is dropped")
    for found in NEGATION.finditer(l.code):
        yield from replaced(l, "negation", found, "", "a `!` is dropped")
    for found in EXTREME.finditer(l.code):
        new = {"min": "max", "max": "min"}[found[1]]
        yield from replaced(l, "extreme", found, new, f"`{found[1]}` becomes `{new}`", 1)


def of_truths(l):
    if re.search(r"\bwhile \(true|\bconst\b.* = |\bstatic\b", l.code):
        return  # a constant is computed by the compiler
    for found in TRUTH.finditer(l.code):
        first, last = found.span()
        new = {"true": "false", "false": "true"}[found[1]]
        if all(l.in_body[first:last]):
            changed = f"({ON} ? {new} : {found[1]})"
            yield "truth", l.line[:first] + new + l.line[last:], l.line[:first] + changed + l.line[last:], f"`{found[1]}` becomes `{new}`"


def of_conditions(l):
    for found in CONDITION.finditer(l.code):
        last, is_here = right_end(l.code, found.end())
        while is_here and l.code[last] in ",;":  # an initialiser comes before the condition
            found_at, (last, is_here) = last + 1, right_end(l.code, last + 1)
            found = re.compile(r" ?").match(l.code, found_at)
        first = found.end()
        condition = l.line[first:last]
        if is_here and l.code[last] == ")" and " = " not in condition and condition and all(l.in_body[first:last]):
            yield ("condition", f"{l.line[:first]}false{l.line[last:]}", f"{l.line[:first]}!{ON} && ({condition}){l.line[last:]}",
                   "the condition never holds")


def of_returns(l):
    if "constexpr" in l.head or not re.search(r"\bbool (?:\w+::)*\w+ ?\($", l.head[:l.head.find("(") + 1]):
        return
    for found in RETURN.finditer(l.code):
        first, last = found.span(1)
        value = l.line[first:last]
        if OPERATOR.search(l.code[first:last]) or value.lstrip("!") in ("true", "false") or not all(l.in_body[first:last]) or "[" in l.code[:first]:
            continue
        yield "result", f"{l.line[:first]}!({value}){l.line[last:]}", both(l, first, last, f"!({value})"), "the result is inverted"


def is_balanced(code):
    return code.count("(") == code.count(")") and "{" not in code and "}" not in code


def of_statements(l):
    begins = bool(re.search(r"(?:[;{})]|\belse|[^:]:)\s*$", l.before))
    if not begins or NO_STATEMENT.search(l.code) or not is_balanced(l.code) or not all(l.in_body) or l.code.count(";") != 1:
        return
    if any(pattern.match(l.code) for pattern in (CALLED, ASSIGNED, SHORT)):
        yield "statement", ";", f"{{ if (!{ON}) {l.line} }}", "the statement is dropped"


def of_line(l):
    if NOT_HERE.search(l.code):
        return
    for changes in (of_operators, of_truths, of_conditions, of_returns, of_statements):
        yield from changes(l)
