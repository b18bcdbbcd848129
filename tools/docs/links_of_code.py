# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Takes the wrong links out of the code on the pages.

Doxygen links a word of an example to any function or class of that name. The variable `world` of an example is not `hvd::world()`:
in code of pages and examples only what stands behind `::`, `.` or `->` is a name of hvd."""

import re

FRAGMENT = re.compile(r'<div class="fragment">.*?</div><!-- fragment -->', re.S)
LINK = re.compile(r'(?P<before>::|\.|-&gt;|)<a class="code[^"]*" href="[^"]*">(?P<text>[^<]*)</a>')


def mended(fragment):
    return LINK.sub(lambda found: found[0] if found["before"] or "::" in found["text"] or found["text"].endswith(".hpp") else found["text"], fragment)


def mend(folder):
    for page in folder.glob("*.html"):
        if not page.name.endswith("_source.html"):
            text = page.read_text()
            if (new := FRAGMENT.sub(lambda found: mended(found[0]), text)) != text:
                page.write_text(new)
