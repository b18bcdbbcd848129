#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Draws the pictures of docs/reference/collectives.md, one SVG per collective, and those of README.md, docs/observing.md, docs/elastic.md and the
ways in docs/way_of_*.md: draw.py [FOLDER]

A picture of a collective shows three ranks, before and after. A cell's colour is the rank that it comes from; a cell of several
colours is a reduction. A picture of a way shows who does its steps, from the top to the bottom."""

import datetime
import json
import pathlib
import sys

# Mid-tones with dark text read on white and on black; text outside of cells is a grey that reads on both.
RANK = ["#7fb3e6", "#f2b76b", "#8fcf9a"]
INK, GREY, EMPTY = "#14202b", "#7d8590", "none"
CELL, HEIGHT, GAP, LEFT, TOP = 44, 32, 16, 66, 36
FONT = "ui-sans-serif, system-ui, Helvetica, Arial, sans-serif"


class Picture:
    def __init__(self, title):
        self.title, self.parts, self.width, self.height = title, [], 0, 0

    def grow(self, x, y):
        self.width, self.height = max(self.width, x), max(self.height, y)

    def text(self, x, y, text, size=14, colour=GREY, anchor="middle", weight="normal"):
        self.parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
                          f'font-weight="{weight}">{text}</text>')

    def cell(self, x, y, text, ranks, width=CELL):
        """Draws one or several elements. `ranks` are those whose data is in it; without ranks it is not written."""
        for i, rank in enumerate(ranks):
            self.parts.append(f'<rect x="{x:g}" y="{y + i * HEIGHT / len(ranks):g}" width="{width}" '
                              f'height="{HEIGHT / len(ranks):g}" fill="{RANK[rank]}"/>')
        dash = "" if ranks else ' stroke-dasharray="3 3"'
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width}" height="{HEIGHT}" fill="none" stroke="{GREY}"{dash}/>')
        if text:
            self.text(x + width / 2, y + HEIGHT / 2 + 5, text, colour=INK)
        self.grow(x + width, y + HEIGHT)

    def rows(self, x, title, ranks):
        """Draws a column of ranks: for each a list of (text, ranks) or (text, ranks, width)."""
        self.text(x, TOP - 14, title, size=13, anchor="start")
        end = x
        for r, cells in enumerate(ranks):
            at, y = x, TOP + r * (HEIGHT + GAP)
            for cell in cells:
                self.cell(at, y, *cell)
                at += cell[2] if len(cell) > 2 else CELL
            if not cells:
                self.text(x, y + HEIGHT / 2 + 5, "nothing", size=13, anchor="start")
                at += 3 * CELL / 2
            end = max(end, at)
        return end

    def ranks(self, count=3):
        for r in range(count):
            self.text(8, TOP + r * (HEIGHT + GAP) + HEIGHT / 2 + 5, f"rank {r}", anchor="start", weight="bold")

    def arrow(self, x, label):
        y = TOP + 1.5 * HEIGHT + GAP
        self.text(x + 48, y - 10, label, size=13)
        self.parts.append(f'<path d="M{x:g} {y:g}h88m-9 -6l9 6l-9 6" fill="none" stroke="{GREY}" stroke-width="2"/>')
        self.grow(x + 96, y)
        return x + 96 + GAP

    def svg(self):
        width, height = self.width + 12, self.height + 12
        body = "\n".join("  " + part for part in self.parts)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
                f'viewBox="0 0 {width:g} {height:g}" font-family="{FONT}" role="img">\n'
                f"  <title>{self.title}</title>\n{body}\n</svg>\n")


def letters(rank, count=3):
    """A rank's own tensor: a0 a1 a2, b0 b1 b2, …"""
    return [(f"abc"[rank] + str(i), [rank]) for i in range(count)]


def sums(count=3):
    return [(f"Σ{i}", [0, 1, 2]) for i in range(count)]


def prefixes(ranks, count=3):
    """The reductions of the first ranks: ab0 is a0 + b0."""
    return [("abc"[:ranks] + str(i), list(range(ranks))) for i in range(count)]


def before_and_after(title, label, before, after, into=None):
    picture = Picture(title)
    picture.ranks()
    end = picture.rows(LEFT, "before", before)
    end = picture.arrow(end + GAP, label)
    picture.rows(end, into or "after", after)
    return picture


def allreduce():
    return before_and_after("allreduce: every rank gets the reduction of all tensors", "sum",
                            [letters(r) for r in range(3)], [sums()] * 3)


def reduce():
    return before_and_after("reduce: the root gets the reduction, the others keep what they had", "sum, root 0",
                            [letters(r) for r in range(3)], [sums(), letters(1), letters(2)])


def reduce_scatter():
    return before_and_after("reduce_scatter: every rank gets its part of the reduction", "sum",
                            [letters(r, 4) for r in range(3)], [sums()[:2], [("Σ2", [0, 1, 2])], [("Σ3", [0, 1, 2])]],
                            "result")


def scan():
    return before_and_after("scan: every rank gets the reduction of its tensor and those of the ranks before it", "sum",
                            [letters(r) for r in range(3)], [prefixes(1), prefixes(2), prefixes(3)])


def exscan():
    return before_and_after("exscan: every rank gets the reduction of the tensors of the ranks before it, and rank 0 that of none",
                            "sum", [letters(r) for r in range(3)], [[("0", [])] * 3, prefixes(1), prefixes(2)])


def broadcast():
    return before_and_after("broadcast: every rank gets the root's tensor", "root 0",
                            [letters(0), [("", [])] * 3, [("", [])] * 3], [letters(0)] * 3)


def allgather():
    ragged = [letters(0, 1), letters(1, 3), letters(2, 2)]
    return before_and_after("allgather: every rank gets every rank's tensor, in rank order", "", ragged,
                            [sum(ragged, [])] * 3, "result.values")


def gather():
    ragged = [letters(0, 1), letters(1, 3), letters(2, 2)]
    return before_and_after("gather: the root gets every rank's tensor, in rank order", "root 0", ragged,
                            [sum(ragged, []), [], []], "result.values")


def scatter():
    return before_and_after("scatter: every rank gets its part of the root's tensor", "root 0",
                            [letters(0, 4), [], []], [letters(0, 2), [("a2", [0])], [("a3", [0])]], "result")


def alltoall():
    def sent(rank, counts):
        # The digit of a cell is its receiver.
        return [(f"{'abc'[rank]}→{to}", [rank]) for to, n in enumerate(counts) for _ in range(n)]

    counts = [[1, 0, 2], [1, 1, 1], [0, 2, 1]]
    before = [sent(r, counts[r]) for r in range(3)]
    after = [sum(([cell for cell in before[r] if cell[0].endswith(str(to))] for r in range(3)), []) for to in range(3)]
    return before_and_after("alltoall: every rank sends each rank its part", "", before, after, "result.values")


def barrier():
    picture = Picture("barrier: nobody goes on before all have come")
    picture.ranks()
    picture.text(LEFT, TOP - 14, "time →", size=13, anchor="start")
    x, arrivals = LEFT, [70, 190, 120]
    end, wall = LEFT + 320, LEFT + 200
    for r, arrival in enumerate(arrivals):
        y = TOP + r * (HEIGHT + GAP)
        picture.cell(x, y, "works", [r], arrival)
        picture.parts.append(f'<path d="M{x + arrival:g} {y + HEIGHT / 2:g}H{wall}" stroke="{GREY}" stroke-width="2" stroke-dasharray="4 4"/>')
        picture.cell(wall, y, "goes on", [r], end - wall)
        if wall - x - arrival > 60:
            picture.text((x + arrival + wall) / 2, y + HEIGHT / 2 - 6, "waits", size=13)
    picture.parts.append(f'<path d="M{wall} {TOP - 10}V{TOP + 3 * HEIGHT + 2 * GAP + 6}" stroke="{GREY}" stroke-width="3"/>')
    picture.text(wall, TOP - 16, "barrier", size=13)
    return picture


def box(picture, x, y, width, text, rank):
    picture.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{HEIGHT}" rx="6" fill="{RANK[rank]}"/>')
    picture.text(x + width / 2, y + HEIGHT / 2 + 5, text, colour=INK)
    picture.grow(x + width, y + HEIGHT)


def short_arrow(picture, x, y, length=24):
    picture.parts.append(f'<path d="M{x:g} {y:g}h{length - 6:g}m-7 -5l7 5l-7 5" fill="none" stroke="{GREY}" stroke-width="2"/>')


def training():
    """Two processes train one model: each computes a gradient of its own samples, both step by the mean."""
    picture = Picture("Data parallelism: two processes average their gradients and stay equal")
    wide, gap, drop = 3 * CELL, 24, 2 * HEIGHT
    columns = [LEFT + 16, LEFT + 16 + 98 + gap]
    columns += [columns[1] + 140 + gap]
    columns += [columns[2] + wide + gap + 96]
    columns += [columns[3] + wide + gap]
    for x, title in zip(columns, ["samples", "model", "gradient", "mean gradient", "new weights"]):
        picture.text(x, TOP - 14, title, size=13, anchor="start")
    for r in range(2):
        y = TOP + r * drop
        middle = y + HEIGHT / 2
        picture.text(8, middle + 5, f"rank {r}", anchor="start", weight="bold")
        box(picture, columns[0], y, 98, f"batch {r}", r)
        short_arrow(picture, columns[0] + 98, middle, gap)
        picture.cell(columns[1], y, "same weights", [], 140)
        picture.parts[-1] = picture.parts[-1].replace(INK, GREY)
        short_arrow(picture, columns[1] + 140, middle, gap)
        for i, cell in enumerate(letters(r)):
            picture.cell(columns[2] + i * CELL, y, *cell)
        for i in range(3):
            picture.cell(columns[3] + i * CELL, y, f"Ø{i}", [0, 1])
        short_arrow(picture, columns[3] + wide, middle, gap)
        picture.cell(columns[4], y, "same weights", [], 140)
        picture.parts[-1] = picture.parts[-1].replace(INK, GREY)
    x, y, end = columns[2] + wide, TOP + HEIGHT / 2, columns[3]
    centre = (x + end) / 2
    low = y + drop
    for begin, turn in ((y, low), (low, y)):
        picture.parts.append(f'<path d="M{x + 6:g} {begin:g}C{centre:g} {begin:g} {centre:g} {turn:g} {end - 4:g} {turn:g}" '
                             f'fill="none" stroke="{GREY}" stroke-width="2"/>')
        picture.parts.append(f'<path d="M{x + 6:g} {begin:g}H{end - 4:g}m-7 -5l7 5l-7 5" fill="none" stroke="{GREY}" stroke-width="2"/>')
    picture.text(centre, TOP + drop + HEIGHT + 16, "world.allreduce(gradient, hvd::average)", size=13)
    picture.grow(columns[4] + 140, TOP + drop + HEIGHT + 16)
    return picture


# A phase's colour. A call and a tensor have that of their rank.
PHASE = {"negotiate": "#c3cbd4", "queue": "#e3d38a", "pack": "#e59a9a", "communicate": "#a9c9ea", "unpack": "#c9a3d6"}


def timeline():
    """timeline.json is what hvd-trace made of two ranks of tests/engine/timeline_program.cpp: their third step, without its plan."""
    events = json.loads((pathlib.Path(__file__).parent / "timeline.json").read_text(encoding="utf-8"))
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X"]
    picture, high, left, wide = Picture("A timeline: the third step of two ranks"), 13, 190, 620
    last = max(e["ts"] + e["dur"] for e in spans)
    scale = wide / last
    y = TOP
    for rank in range(2):
        picture.text(8, y + high, f"rank {rank}", anchor="start", weight="bold")
        for place in sorted(p for p in names if p[0] == rank):
            picture.text(left - 8, y + high, names[place].replace('"', "&quot;"), size=12, anchor="end")
            for e in events:
                if (e["pid"], e["tid"]) != place or "ts" not in e:
                    continue
                x = left + e["ts"] * scale
                if e["ph"] == "i":
                    picture.parts.append(f'<path d="M{x:.1f} {y - 2}l4 7h-8z" fill="#d1495b"/>')
                    continue
                is_phase = e["cat"] == "phase"
                top, width = y + (high if is_phase else 0), max(e["dur"] * scale, 1)
                picture.parts.append(f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{high - 1}" '
                                     f'fill="{PHASE[e["name"]] if is_phase else RANK[rank]}"/>')
                if width > 7 * len(e["name"]):
                    picture.text(round(x + 3, 1), top + 10, e["name"], size=10, colour=INK, anchor="start")
            y += 2 * high + 5
        y += 10
    for micro in range(0, int(last) + 1, 200):
        x = left + micro * scale
        picture.parts.append(f'<path d="M{x:.1f} {TOP - 8}V{y - 8}" stroke="{GREY}" stroke-opacity="0.35"/>')
        picture.text(round(x, 1), TOP - 14, f"{micro} µs", size=11)
    x = left
    for name, colour in PHASE.items():
        picture.parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>')
        picture.text(x + 17, y + 10, name, size=12, anchor="start")
        x += 40 + 7 * len(name)
    picture.parts.append(f'<path d="M{x + 6} {y + 1}l5 9h-10z" fill="#d1495b"/>')
    picture.text(x + 17, y + 10, "rank 1 is ready", size=12, anchor="start")
    picture.grow(left + wide + 20, y + 16)
    return picture


def elastic():
    """elastic.json is the event log of ./run demo-elastic with the trainer's lines about its epochs, and their times."""
    events = json.loads((pathlib.Path(__file__).parent / "elastic.json").read_text(encoding="utf-8"))
    clock = [datetime.datetime.fromisoformat(e["time"].replace("Z", "+00:00")) for e in events]
    for e, at in zip(events, clock):
        e["at"] = (at - clock[0]).total_seconds()
    slots = sorted({e["rank"] for e in events if e["event"] == "started"})
    epochs = [e for e in events if e["event"] == "epoch"]
    trained = [e for e in events if e["event"] == "trained"]
    picture, left, wide, low = Picture("An elastic job: its ranks, and the images that it trains in a second"), 70, 690, 110
    scale = wide / events[-1]["at"]
    bottom = TOP + len(slots) * (HEIGHT + 8)

    def line(path, colour, width=2, opacity=1):
        picture.parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-opacity="{opacity}"/>')

    for lane, slot in enumerate(slots):
        y = TOP + lane * (HEIGHT + 8)
        picture.text(8, y + HEIGHT / 2 + 5, f"rank {slot}", anchor="start", weight="bold")
        for e, after in zip(epochs, [*epochs[1:], events[-1]]):
            if slot in e["ranks"]:
                picture.parts.append(f'<rect x="{left + e["at"] * scale:.1f}" y="{y}" width="{(after["at"] - e["at"]) * scale:.1f}" height="{HEIGHT}" '
                                     f'fill="{[*RANK, "#c9a3d6"][lane % 4]}"/>')
        for e in events:
            if e["event"] == "failed" and e["rank"] == slot:
                x = left + e["at"] * scale
                line(f"M{x - 6:.1f} {y + 10}l12 12m0 -12l-12 12", "#d1495b", 3)
                picture.text(round(x + 10, 1), y + 21, "killed; the others go on after " + f'{1000 * epochs[-1]["recovery_seconds"]:.0f} ms', size=12, anchor="start")
    for e in epochs:
        x = left + e["at"] * scale
        line(f"M{x:.1f} {TOP - 8}V{bottom + low}", GREY, 1, 0.5)
        picture.text(round(x, 1), TOP - 14, f'{e["size"]} ranks', size=12, anchor="start")
    most = max(e["images_per_second"] for e in trained)
    base = bottom + low
    points = [(left + e["at"] * scale, base - e["images_per_second"] / most * (low - 24)) for e in trained]
    line("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points), "#4b86c6")
    for x, y in points:
        picture.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#4b86c6"/>')
    picture.text(left - 8, bottom + 30, f"{most / 1000:.0f}k", size=12, anchor="end")
    picture.text(left - 8, bottom + 46, "images/s", size=12, anchor="end")
    line(f"M{left} {base}H{left + wide}", GREY, 1)
    for second in range(int(events[-1]["at"]) + 1):
        picture.text(round(left + second * scale, 1), base + 16, f"{second} s", size=11)
    picture.grow(left + wide + 20, base + 18)
    return picture


LANE, STEP, BOX = 232, 62, 44  # of a way: the width of a lane, the height of a row and that of a box


def way(title, lanes, steps):
    """Draws who does the steps of a way. A step is (lane, text, function, rows down, what it comes after), and the last two may be
    missing: it stands one row below the step before it, and comes after that. What it comes after is a list of indices."""
    picture, places, row = Picture(title), [], 0
    for number, (lane, _, _, *rest) in enumerate(steps):
        row += (rest[0] if rest else 1) if number else 0
        places.append((8 + lane * LANE, TOP + row * STEP))
        for other in rest[1] if len(rest) > 1 else [number - 1] if number else []:
            lead(picture, places[other], places[-1])
    for (lane, text, function, *_), (x, y) in zip(steps, places):
        picture.parts.append(f'<rect x="{x}" y="{y}" width="{LANE - 24}" height="{BOX}" rx="6" fill="{RANK[lane]}"/>')
        picture.text(x + (LANE - 24) / 2, y + (18 if function else 27), text, size=13, colour=INK)
        if function:
            picture.text(x + (LANE - 24) / 2, y + 35, function, size=11, colour=INK)
        picture.grow(x + LANE - 24, y + BOX)
    for lane, name in enumerate(lanes):
        picture.text(8 + lane * LANE + (LANE - 24) / 2, TOP - 14, name, weight="bold")
    for lane in range(1, len(lanes)):
        x = lane * LANE - 4
        picture.parts.append(f'<path d="M{x} {TOP - 24}V{picture.height}" stroke="{GREY}" stroke-opacity="0.35"/>')
    return picture


def lead(picture, begin, end):
    """Draws an arrow between two boxes: down in a lane, and otherwise to the lane of the second and down to it."""
    wide = LANE - 24
    (x, y), (to_x, to_y) = begin, end
    if y == to_y:
        path = f"M{x + wide} {y + BOX / 2:g}H{to_x - 2}m-9 -5l9 5l-9 5" if x < to_x else f"M{x} {y + BOX / 2:g}H{to_x + wide + 2}m9 -5l-9 5l9 5"
    elif x == to_x:
        path = f"M{x + wide // 2} {y + BOX}V{to_y - 2}m-5 -9l5 9l5 -9"
    else:
        path = f"M{x + wide if x < to_x else x} {y + BOX / 2:g}H{to_x + wide // 2}V{to_y - 2}m-5 -9l5 9l5 -9"
    picture.parts.append(f'<path d="{path}" fill="none" stroke="{GREY}" stroke-width="2"/>')


def way_of_a_gradient():
    return way("The way of a gradient from its report to the optimizer's step", ["the trainer's thread", "the progress thread", "the other ranks"], [
        (0, "reports a gradient", "gradient_ready(i)"),
        (0, "compares, if anything is new", "gradient_reducer::seal"),
        (2, "compare the same", "gradient_reducer::seal", 0),
        (0, "counts the report", "reported_parameters::count_report", 1, [1]),
        (0, "starts full buckets in order", "bucket_queue::start_while"),
        (0, "encodes, gives away a plan", "gradient_bucket::start"),
        (1, "takes the call from the queue", "progress::serve"),
        (0, "begins the rest of the step", "gradient_reducer::reduce", 0, [5]),
        (1, "headers, then bytes", "call_driver::finish", 1, [6]),
        (2, "the same bucket", "call_driver::finish", 0),
        (0, "waits, decodes", "gradient_bucket::wait", 1, [7, 8]),
        (0, "takes the step", "distributed_optimizer::step_alone"),
    ])


def way_of_a_named_tensor():
    return way("The way of a named tensor through the engines of two ranks", ["a thread of rank 1", "the engine of rank 1", "the engine of rank 0"], [
        (0, "submits a tensor", "engine_core::submit"),
        (1, "wakes, takes the submission", "engine_thread::submit"),
        (0, "waits for the request", "engine_core::wait", 0, [0]),
        (1, "here and below all have it", "negotiator::pass_on", 1, [1]),
        (2, "compares, decides", "negotiator::decide"),
        (1, "hears the decision", "negotiator::take_from_parent"),
        (2, "runs the unit", "unit_driver::run_agreed", 0, [4]),
        (1, "runs the same unit", "unit_driver::run_agreed", 1, [5]),
        (1, "one call for its tensors", "unit_runner::run"),
        (2, "the same call", "unit_runner::run", 0, [6, 8]),
        (1, "ends the requests", "unit_driver::complete_unit", 1, [8]),
        (0, "goes on", "completions::sleep", 1, [2, 10]),
    ])


def way_of_a_commit():
    return way("The way of an elastic commit, and of a rank that is lost", ["a rank that lives", "the coordinator", "a rank that dies"], [
        (0, "copies the objects", "state::commit"),
        (2, "copies the objects", "state::commit", 0, []),
        (0, "does anybody wait to join?", "elastic_watch", 1, [0]),
        (2, "does anybody wait to join?", "elastic_watch", 0, [1]),
        (2, "dies in the next step", ""),
        (1, "a connection has ended", "coordinator::lose"),
        (0, "its call throws peer_error", "call_driver::fail", 0, [2]),
        (0, "puts the last commit back", "state::restore"),
        (0, "comes again, says its step", "membership::join"),
        (1, "all who live have come", "coordinator::all_have_come"),
        (1, "names members and source", "coordinator::begin_epoch"),
        (0, "a communicator of these", "elastic_part::communicator_of"),
        (0, "takes the state of the source", "elastic_access::begin_epoch"),
        (0, "goes on from that step", "hvd::elastic::run"),
    ])


def way_of_a_device_call():
    return way("The way of a device call from the enqueuing to the end", ["the caller's thread", "the stream", "the watcher's thread"], [
        (0, "describes the call", "device_arguments"),
        (0, "chooses stream and limit", "begin_call"),
        (0, "gives NCCL a group of calls", "nccl_session::in_group"),
        (1, "kernels of NCCL", "", 0),
        (0, "launches the factor of a mean", "scale_result", 1, [2]),
        (1, "multiplies the result", "", 0, [3, 4]),
        (0, "records an event", "device_session::mark", 1, [4]),
        (1, "reaches the event", "", 0, [5, 6]),
        (0, "wait(): polls the event", "device_session::wait", 1, [6]),
        (2, "wait(stream): polls the event", "device_watcher::look", 0, [7]),
        (0, "done, or the limit has passed", "device_session::expire", 1, [8]),
        (2, "done, or the limit has passed", "device_session::expire", 0, [9]),
        (1, "the calls on it are ended", "nccl_session::give_up", 1, [10, 11]),
    ])


DRAWINGS = [allreduce, broadcast, reduce, allgather, gather, scatter, reduce_scatter, scan, exscan, alltoall, barrier, training, timeline, elastic,
            way_of_a_gradient, way_of_a_named_tensor, way_of_a_commit, way_of_a_device_call]

if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    for draw in DRAWINGS:
        (folder / f"{draw.__name__}.svg").write_text(draw().svg(), encoding="utf-8")
