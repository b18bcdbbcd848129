# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Writes what the search of the site looks through: the sections of the pages, and the names of the reference.

A comment `<!-- search: words -->` on a page gives the section that it stands in further words, such as those that other libraries use.
tools/docs/search.js makes an index of them with lunr.js, in the browser, so that it works from files."""

import json
import re
import xml.etree.ElementTree

KEYWORDS = re.compile(r"<!-- search: (.*?) -->", re.S)
KINDS = {"namespace", "class", "struct", "concept", "define", "union"}


def section(title, heading, address, text, weight):
    """Returns an entry for a section of a page."""
    keywords = " ".join(KEYWORDS.findall(text))
    text = re.sub(r"\]\([^)]*\)|<!--.*?-->|^\|[-|]+\|$", " ", text, flags=re.M | re.S)
    return {"page": title, "heading": heading.replace("`", ""), "address": address, "keywords": keywords, "weight": weight,
            "text": " ".join(re.sub(r"[`*|#]", " ", text).split())}


def names(tags, declared):
    """Returns an entry for each name that Doxygen's file of tags has: [name, scope, address]. The file does not say in which namespace
    a name of a module is: `declared` has the namespaces of (module, name)."""
    found = {}
    for compound in xml.etree.ElementTree.parse(tags).getroot():
        kind, full = compound.get("kind"), compound.findtext("name")
        if kind in KINDS:
            scope, _, name = full.rpartition("::")
            found.setdefault((name, scope), address_of(compound.findtext("filename")))
        if kind not in KINDS and kind not in ("group", "file"):
            continue
        for member in compound.findall("member"):
            name, file = member.findtext("name"), member.findtext("anchorfile")
            scopes = [full] if kind in KINDS else [""] if member.get("kind") == "define" else declared.get((full, name), ["hvd"])
            for scope in scopes:
                if file and not name.startswith("~") and "detail" not in scope:
                    found.setdefault((name, scope), f"{file}#{member.findtext('anchor')}")
    return [[name, scope, address] for (name, scope), address in sorted(found.items())]


def address_of(filename):
    return filename if filename.endswith(".html") else filename + ".html"


def write(folder, sections, tags, declared):
    """Writes search_data.js beside the pages."""
    data = {"sections": [section(*each) for each in sections], "names": names(tags, declared)}
    (folder / "search_data.js").write_text("const hvdSearchData = " + json.dumps(data, separators=(",", ":")) + ";\n")
    return data
