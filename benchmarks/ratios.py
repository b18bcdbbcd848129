# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Reads the figures of a benchmark of collectives: the lines of its paths, their ratios to the best peer, and a verdict."""


def size_text(size, _=None):
    """Returns a size as an engineer reads it: 64 B, 16 KiB, 4 MiB."""
    for unit, bytes_of in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= bytes_of:
            return f"{size / bytes_of:.3g} {unit}"
    return f"{size:.3g} B"


def lines_of(document, collective, what):
    """Returns the points (size, value) of each path: those in place, or else out of place."""
    rows = [row for row in document["rows"] if row["collective"] == collective]
    several = len({row.get("type") for row in rows}) > 1
    lines = {}
    for row in rows:
        block = row["in_place"] or row["out_of_place"]
        if block[what]:
            lines.setdefault(f"{row['path']} {row['type']}" if several else row["path"], []).append((row["size"], block[what]))
    return lines


def ratios_of(document, collective):
    """Returns for each path of hvd the points (size, time of the best peer over its time)."""
    best, ratios = {}, {}
    rows = [(row, row["in_place"] or row["out_of_place"]) for row in document["rows"] if row["collective"] == collective]
    for row, block in rows:
        if not row["path"].startswith("hvd") and block["time"]:
            key = (row["size"], row.get("type"))
            best[key] = min(best.get(key, block["time"]), block["time"])
    several = len({row.get("type") for row, _ in rows}) > 1
    for row, block in rows:
        key = (row["size"], row.get("type"))
        if row["path"].startswith("hvd") and key in best and block["time"]:
            name = f"{row['path']} {row['type']}" if several else row["path"]
            ratios.setdefault(name, []).append((row["size"], best[key] / block["time"]))
    return ratios


def verdict(document, collective):
    """Returns a sentence for each path of hvd: at how many sizes it is faster than the best peer, and the ends."""
    for path, points in ratios_of(document, collective).items():
        faster = sum(ratio >= 1 for _, ratio in points)
        (low_size, low), (high_size, high) = min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1])
        yield (f"{path} is faster than the best peer at {faster} of {len(points)} sizes: "
               f"{low:.2f} times as fast at {size_text(low_size)}, {high:.2f} times at {size_text(high_size)}.")


def set_verdict(name, rows):
    """Returns a sentence for a model's gradients: the best of hvd beside the best peer."""
    ours = min((row for row in rows if "hvd" in row["path"]), key=lambda row: row["time"], default=None)
    peer = min((row for row in rows if "hvd" not in row["path"]), key=lambda row: row["time"], default=None)
    if not ours or not peer:
        return ""
    return f"{name}: {ours['path']} is {peer['time'] / ours['time']:.2f} times as fast as the best peer, {peer['path']}."
