#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Draws the results of `./run bench` into a page: report.py RESULTS PAGE_FOLDER writes PAGE_FOLDER/index.html

report.py --recorded PAGE PICTURE draws the speeds that `./run bench --check --record` has kept on a page."""

import glob
import html
import json
import pathlib
import re
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "hvd"
from matplotlib import pyplot, ticker

from ratios import lines_of, ratios_of, set_verdict, size_text, verdict


STYLES = {"": {}, "_dark": {"figure.facecolor": "#161b22", "axes.facecolor": "#161b22", "savefig.facecolor": "#161b22", "text.color": "#e6edf3",
                           "axes.labelcolor": "#e6edf3", "axes.edgecolor": "#8b949e", "xtick.color": "#e6edf3", "ytick.color": "#e6edf3",
                           "legend.facecolor": "#161b22", "legend.edgecolor": "#8b949e"}}


def draw(axes, lines):
    for path, points in lines.items():
        axes.plot(*zip(*points), marker=".", label=path, linewidth=2 if path.startswith("hvd") else 1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(ticker.LogLocator(base=16))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(size_text))
    axes.set_xlabel("size of the tensor")
    axes.grid(alpha=0.3)


def collective_figure(document, collective):
    ratios = ratios_of(document, collective)
    figure, parts = pyplot.subplots(1, 3 if ratios else 2, figsize=(15 if ratios else 11, 3.8))
    draw(parts[0], lines_of(document, collective, "time"))
    parts[0].set_yscale("log")
    parts[0].yaxis.set_major_formatter(ticker.FuncFormatter(lambda time, _: f"{time:g}"))
    parts[0].yaxis.set_minor_formatter(ticker.FuncFormatter(lambda time, _: f"{time:g}" if f"{time:e}"[0] in "25" else ""))
    parts[0].set_ylabel("time (µs)")
    parts[0].legend(fontsize=7)
    draw(parts[1], lines_of(document, collective, "busbw"))
    parts[1].set_ylabel("bus bandwidth (GB/s)")
    if ratios:
        draw(parts[2], ratios)
        parts[2].axhline(1, color="tab:red", linewidth=1.2)
        parts[2].set_yscale("log", base=2)
        parts[2].yaxis.set_major_formatter(ticker.FuncFormatter(lambda ratio, _: f"{ratio:g}×"))
        parts[2].set_ylabel("times as fast as the best peer")
        parts[2].legend(fontsize=7)
    figure.suptitle(f"{document['benchmark']}: {collective}, {document['ranks']} ranks on {document['backend']}")
    figure.tight_layout()
    return figure


def bars(title, unit, values):
    """Draws horizontal bars of (label, value)."""
    figure, axes = pyplot.subplots(figsize=(11, 0.9 + 0.3 * len(values)))
    labels = [label for label, _ in values]
    drawn = axes.barh(range(len(values)), [value for _, value in values],
                      color=["tab:blue" if "hvd" in label else "tab:gray" for label in labels])
    axes.bar_label(drawn, fmt="%.4g", padding=3, fontsize=8)
    axes.set_yticks(range(len(values)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(unit)
    axes.set_title(title, fontsize=10)
    return figure


def grouped(rows, key):
    groups = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups.items()


def fusion_figures(document):
    for gradients, rows in grouped(document["rows"], lambda row: row["set"]):
        yield bars(f"average of {gradients}, {document['ranks']} ranks", "µs", [(row["path"], row["time"]) for row in rows])


def memory_figures(document):
    yield bars("memory: read and written", "GB/s", [(f"{row['kernel']}, {row['ranks']} ranks", row["bandwidth"]) for row in document["rows"]])


def overhead_figures(document):
    for ranks, rows in grouped(document["rows"], lambda row: row["ranks"]):
        yield bars(f"a call of one element on {ranks} ranks", "ns", [(row["call"], row["ns"]) for row in rows])


def compile_figures(document):
    for form, rows in grouped(document["rows"], lambda row: f"{row['form']} {row['optimisation']}"):
        yield bars(f"compiling one allreduce and one broadcast: {form}", "CPU seconds", [(row["header"], row["seconds"]) for row in rows])


def scaling_figures(document):
    for model, rows in grouped(document["rows"], lambda row: row["model"]):
        yield bars(f"scaling efficiency, {model}", "%", [
            (f"{row['ranks']} ranks: {row['how']}, {row['memory']}", 100 * row["efficiency"]) for row in rows if row["ranks"] > 1])


def engine_figures(document):
    for job, rows in grouped([row for row in document["rows"] if "time" in row], lambda row: row["job"]):
        yield bars(f"{job}, {document['ranks']} ranks", "µs", [(row["path"], row["time"]) for row in rows])


def sparse_figures(document):
    yield bars("a step in which few rows have a gradient", "ms", [(f"hvd, {row['rows']} rows of {row['table_rows']}", row["ms"]) for row in document["rows"]])


def batch_norm_figures(document):
    yield bars("synchronised batch norm over two plain passes", "times as long", [
        (f"hvd, {row['samples']} x {row['channels']} x {row['inner']}, channels {row['order']}", row["ms"] / row["plain_ms"]) for row in document["rows"]])


def overlap_figures(document):
    yield bars("a step whose gradients travel meanwhile", "ms", [(row["what"], row["ms"]) for row in document["rows"]])


def collectives_of(document):
    return list(dict.fromkeys(row["collective"] for row in document["rows"]))


def collective_figures(document):
    yield from (collective_figure(document, collective) for collective in collectives_of(document))


DRAWN_BY = {"collectives": collective_figures, "peers": collective_figures, "fusion": fusion_figures, "memory": memory_figures,
            "overhead": overhead_figures, "scaling": scaling_figures, "compile_time": compile_figures,
            "engine": engine_figures, "sparse": sparse_figures, "batch_norm": batch_norm_figures, "overlap": overlap_figures}


# The rows of the recorded table that the picture of README.md shows: the speed over MPI of an average of gradients,
# where MPI is used in the faster way of two.
SHOWN = {"ResNet-50, plan, arena: speed over 161 calls": "161 gradients of ResNet-50, plan, arena",
         "2 ranks, arena, from 64 MiB: speed over MPI_Allreduce": "one tensor from 64 MiB, 2 ranks, arena",
         "4 ranks, arena, from 64 MiB: speed over MPI_Allreduce": "one tensor from 64 MiB, 4 ranks, arena",
         "1000 x 1 KiB, plan, arena: speed over a packed buffer": "1000 tensors of 1 KiB, plan, arena",
         "ResNet-50, plan, plain: speed over 161 calls": "161 gradients of ResNet-50, plan",
         "4 ranks, plain, from 64 MiB: speed over MPI_Allreduce": "one tensor from 64 MiB, 4 ranks",
         "2 ranks, plain, from 64 MiB: speed over MPI_Allreduce": "one tensor from 64 MiB, 2 ranks",
         "1000 x 1 KiB, plan, plain: speed over a packed buffer": "1000 tensors of 1 KiB, plan",
         "2 ranks, plain, from 4 B: speed over MPI_Allreduce": "one tensor from 4 B, 2 ranks"}


def draw_recorded(page, picture):
    """Draws the speeds over MPI of the recorded table. Text stays text, so that a test finds the figures in the picture."""
    text = pathlib.Path(page).read_text(encoding="utf-8")
    rows = {}  # the worst of the states of the cores
    for row, _, value in re.findall(r"^(\S.*?)( \((?:near|far|unknown)\))?  +(\d+\.\d+) [<>]=", text, re.M):
        rows[row] = min(rows.get(row, value), value, key=float)
    with pyplot.rc_context({"svg.fonttype": "none", "font.family": "sans-serif"}):
        figure, axes = pyplot.subplots(figsize=(9, 0.9 + 0.34 * len(SHOWN)))
        values = [float(rows[row]) for row in SHOWN]
        drawn = axes.barh(range(len(values)), values, color=["#4a90d9" if "arena" in row else "#9dc3ea" for row in SHOWN])
        axes.bar_label(drawn, labels=[f"{rows[row]}×" for row in SHOWN], padding=3, fontsize=9)
        axes.set_yticks(range(len(values)), SHOWN.values(), fontsize=9)
        axes.axvline(1, color="#7d8590", linewidth=1)
        axes.text(1.1, -0.65, "MPI = 1", fontsize=8, color="#7d8590")
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel("times as fast as Open MPI, ranks of one machine, the worst size of each row")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        figure.savefig(picture, bbox_inches="tight", facecolor="white", metadata={"Date": None})
        pyplot.close(figure)


HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>hvd benchmarks</title>
<style>
:root { color-scheme: light dark; }
body { font: 15px sans-serif; max-width: 84em; margin: 2em auto; padding: 0 1em; color: #1f2328; background: #fff; }
img { max-width: 100%; }
.verdict { font-weight: bold; }
@media (prefers-color-scheme: dark) { body { color: #e6edf3; background: #161b22; } a { color: #6cb6ff; } }
</style>
<h1>hvd benchmarks</h1>
<p>The last curve of each figure is the time of the best peer over that of hvd: above the line at 1 hvd is faster.</p>"""


def said_of(document):
    """Returns a sentence for each figure, where there is a peer."""
    if DRAWN_BY.get(document["benchmark"]) is collective_figures:
        return [" ".join(verdict(document, collective)) for collective in collectives_of(document)]
    if document["benchmark"] == "fusion":
        return [set_verdict(gradients, rows) for gradients, rows in grouped(document["rows"], lambda row: row["set"])]
    return []


def section(name, document, folder):
    machine = document.get("machine")
    about = [document.get("date"), document.get("command"), document.get("compiler")]
    if isinstance(machine, dict):
        about += [f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, {machine.get('mpi', 'no MPI')}"]
    if "copy_bandwidth" in document:
        about += [f"all ranks copying read and write {document['copy_bandwidth']:.1f} GB/s"]
    yield f"<h2>{html.escape(name)}</h2><p>{html.escape(' · '.join(filter(None, about)))} · <a href='../results/{name}.json'>figures</a></p>"
    said = said_of(document)
    for suffix, style in STYLES.items():
        with pyplot.rc_context(style):
            for number, figure in enumerate(DRAWN_BY.get(document["benchmark"], lambda _: ())(document)):
                figure.savefig(folder / f"{name}_{number}{suffix}.svg", bbox_inches="tight", metadata={"Date": None})
                pyplot.close(figure)
    for number in range(len(list(folder.glob(f"{glob.escape(name)}_*_dark.svg")))):
        if number < len(said) and said[number]:
            yield f"<p class='verdict'>{html.escape(said[number])}</p>"
        yield (f"<p><picture><source media='(prefers-color-scheme: dark)' srcset='{name}_{number}_dark.svg'>"
               f"<img src='{name}_{number}.svg' alt='{html.escape(said[number] if number < len(said) and said[number] else name)}'></picture></p>")


def main(results, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.svg"):
        file.unlink()
    parts = [HEAD]
    for file in sorted(pathlib.Path(results).glob("*.json")):
        parts += section(file.stem, json.loads(file.read_text(encoding="utf-8")), folder)
    (folder / "index.html").write_text("\n".join(parts) + "\n", encoding="utf-8")
    print(f"the page: {folder / 'index.html'}")


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--recorded":
        draw_recorded(*sys.argv[2:])
    elif len(sys.argv) == 3:
        main(*sys.argv[1:])
    else:
        sys.exit(__doc__)
