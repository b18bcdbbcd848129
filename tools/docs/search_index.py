# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Adds the words of the pages to Doxygen's search, which knows names and titles only.

Doxygen keeps its entries by their first letter: search/all_0.js, all_1.js, …, each a list of
[identifier, [text, [address, 1, scope], …]]. Version 1.9.4 also keeps concepts under the first letter of their namespace,
where the search does not look. Here all entries are put under their own letter."""

import ast
import collections
import html
import json
import re

WORD = re.compile(r"[A-Za-z][\w]{3,}")
MOST_PLACES = 12


def key(text):
    """Returns a text in the form that search.js compares."""
    return "".join(letter if letter.isalnum() or ord(letter) >= 0x80 else f"_{ord(letter):02x}" for letter in text.lower())


def entries_of(folder):
    """Yields Doxygen's own entries, each with its places as they are in the file."""
    for file in sorted(folder.glob("all_*.js")):
        for line in file.read_text().splitlines():
            if line.startswith("  ['"):
                _, (text, *places) = ast.literal_eval(line.strip().rstrip(","))
                yield text, places


def entries_for(sections):
    """Yields an entry for each heading, and one for each word with the sections that it is in."""
    places, titles = collections.defaultdict(dict), {title for title, *_ in sections}
    for title, heading, address, text in sections:
        title, heading = html.escape(title, False), html.escape(heading, False)
        place = [f"../{address}", 1, f"{title}: {heading}" if heading else title]
        if heading:
            yield heading, [[place[0], 1, title]]
        words = collections.Counter(word.lower() for word in WORD.findall(text))
        for word in WORD.findall(heading):
            words[word.lower()] += 1000
        for word, count in words.items():
            places[word][tuple(place)] = count
    for word, found in places.items():
        # A word that is on most pages leads nowhere.
        if len({place[2].split(":")[0] for place in found}) * 2 <= len(titles):
            best = sorted(found, key=lambda place: -found[place])[:MOST_PLACES]
            yield word, [list(place) for place in best]


def extend(folder, sections):
    """Writes the entries of Doxygen and of the pages, each under its own first letter."""
    entries = list(entries_of(folder)) + list(entries_for(sections))
    by_letter = collections.defaultdict(list)
    for text, places in entries:
        if text and text[0].isascii():
            by_letter[text[0].lower()].append((text, places))
    for file in folder.glob("all_*.js"):
        file.unlink()
    frames = sorted(folder.glob("all_*.html"))
    frame = frames[0].read_text() if frames else None
    letters = "".join(sorted(by_letter))
    for number, letter in enumerate(letters):
        name = f"all_{number:x}"
        ordered = sorted(by_letter[letter], key=lambda entry: key(html.unescape(entry[0])))
        lines = [json.dumps([f"{key(html.unescape(text))}_{i}", [text, *places]]) for i, (text, places) in enumerate(ordered)]
        (folder / f"{name}.js").write_text("var searchData=\n[\n" + ",\n".join(lines) + "\n];\n")
        if frame:
            (folder / f"{name}.html").write_text(re.sub(r"all_[0-9a-f]+\.js", f"{name}.js", frame))
    data = (folder / "searchdata.js").read_text()
    (folder / "searchdata.js").write_text(re.sub(r'0: "[^"]*"', lambda _: f"0: {json.dumps(letters)}", data, count=1))
