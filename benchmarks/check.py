#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The figures this project holds itself to, each with its limit and pass, fail or missing.

check.py RESULTS [--record] [PART...] reads what `./run bench --check` has measured, or the parts of it that are named. A figure whose
measurement does not exist in this version of hvd (or was not made) is reported as missing, which is no failure. The script ends with 1
if a figure fails."""

import argparse
import json
import pathlib
import statistics
import sys

from best_of import Comparison, size_name

KI, MI = 1 << 10, 1 << 20
PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- check: begin -->", "<!-- check: end -->"


class Results:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def document(self, name):
        file = self.folder / f"{name}.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"rows": []}

    def rows(self, name, **wanted):
        return [row for row in self.document(name)["rows"] if all(row.get(key) == value for key, value in wanted.items())]


def worst(pairs, lowest=True):
    """Returns the worst of (value, where), or nothing."""
    return (min if lowest else max)(pairs, default=None)


def speeds(results, file, memory, low, high=1 << 62):
    """Yields (state, figure): the smallest speed-up over MPI_Allreduce in place, of the best MPI that is there, among the sizes,
    for each distance of the cores that a run saw."""
    comparison = Comparison(results.folder, file)
    absent = comparison.missing()
    for cores in comparison.states():
        figure = worst([(ratio, f"at {size_name(size)}, {mpi}") for size, (ratio, mpi) in comparison.best(memory, cores).items() if low <= size <= high])
        yield f" ({cores})" if cores else "", (figure[0], f"{figure[1]} (without {', '.join(absent)})") if figure and absent else figure


def share_of_limit(results, memory, low):
    return worst([(row["in_place"]["of_limit"], f"at {size_name(row['size'])}")
                  for row in results.rows("allreduce_2", collective="all_reduce", path=f"hvd {memory}", type="float")
                  if row["size"] >= low])


def half_of_float(results, half, memory):
    """Returns the largest time of a 16-bit type over that of as many floats."""
    floats = {row["count"]: row["in_place"]["time"] for row in results.rows("halves", path=f"hvd {memory}", type="float")}
    return worst([(row["in_place"]["time"] / floats[row["count"]], f"at {row['count']} elements")
                  for row in results.rows("halves", path=f"hvd {memory}", type=half) if row["count"] in floats], lowest=False)


def half_over_user_operation(results, half, memory):
    return worst([(row["in_place"]["ratio"], f"at {row['count']} elements")
                  for row in results.rows("halves", path=f"hvd {memory}", type=half) if "ratio" in row["in_place"]])


def fused(results, gradients, memory, over):
    return worst([(row[over], "") for row in results.rows("fusion", set=gradients, path=f"hvd plan {memory}") if over in row])


def joined_step(results, memory):
    """Returns the time of a fused average and step over that of a plan and a local step."""
    separate = results.rows("step", path=f"hvd plan and adam {memory}")
    joined = results.rows("step", path=f"hvd run_and_apply {memory}")
    return (separate[0]["time"] / joined[0]["time"], "") if separate and joined else None


def joined_state(results, memory):
    separate = results.rows("step", path=f"hvd plan and adam {memory}")
    joined = results.rows("step", path=f"hvd run_and_apply {memory}")
    return (joined[0]["state"] / separate[0]["state"], "") if separate and joined else None


def steps(results, file, memory):
    """Returns the largest time of step() over that of run_and_apply(), among the optimizers."""
    return worst([(row["ratio"], row["optimizer"]) for row in results.rows(file, memory=memory)], lowest=False)


def by_engine(results, file, job, value):
    return worst([(row[value], "") for row in results.rows(file, job=job, path="engine")], lowest=False)


def compiled(results, header, form, key="ratio", optimisation=None):
    """The largest figure of a form, without and with optimisation or in one of them."""
    return worst([(row[key], row["optimisation"]) for row in results.rows("compile_time", header=header, form=form)
                  if row.get(key) and optimisation in (None, row["optimisation"])], lowest=False)


CALLS = ("back_to_back", "after_barrier", "until_last", "rewritten")


def of_all_collectives(results, ranks):
    """Returns {collective: [(speed over an MPI, where)]}: of all sizes and MPIs, in and out of place, however the calls follow each other."""
    found = {}
    for calls in CALLS:
        for row, mpi in Comparison(results.folder, f"collectives_{ranks}_{calls}").all_rows("plain"):
            for place in ("in_place", "out_of_place"):
                if ratio := (row[place] or {}).get("ratio"):
                    where = f"at {size_name(row['size'])}, {place.replace('_', ' ')}, {calls.replace('_', ' ')}, {mpi}"
                    found.setdefault(row["collective"], []).append((ratio, where, row["size"]))
    return found


def wrong_elements(results):
    def count(value):
        if isinstance(value, dict):
            return sum(inner if key == "wrong" else count(inner) for key, inner in value.items())
        return sum(map(count, value)) if isinstance(value, list) else 0
    files = sorted(results.folder.glob("*.json"))
    return (sum(count(json.loads(file.read_text(encoding="utf-8"))) for file in files), "") if files else None


AT_LEAST, AT_MOST = ">=", "<="


def of_allreduce(r):
    for ranks, memory, limits in ((2, "plain", ((4, 1.0), (16 * KI, 1.4), (64 * MI, 3.0))), (2, "arena", ((16 * MI, 2.0), (64 * MI, 4.0))),
                                  (4, "plain", ((4, 1.0), (4 * MI, 1.5), (64 * MI, 2.5))),
                                  (4, "arena", ((4, 0.95), (16 * MI, 1.8), (64 * MI, 3.5))),
                                  (8, "plain", ((4, 1.0),)), (8, "arena", ((4, 0.8),))):
        for low, limit in limits:
            high = {(2, "arena", 16 * MI): 16 * MI, (2, "plain", 16 * KI): 4 * MI}.get((ranks, memory, low), 1 << 62)
            sizes = f"at {size_name(low)}" if high == low else f"from {size_name(low)}" + (f" to {size_name(high)}" if high < 1 << 62 else "")
            for state, figure in speeds(r, f"allreduce_{ranks}", memory, low, high):
                yield f"{ranks} ranks, {memory}, {sizes}: speed over MPI_Allreduce{state}", figure, AT_LEAST, limit
    for ranks, limit in ((2, 0.9), (4, 1.0), (8, 1.0)):
        for loops in (1, 2):
            for memory in ("plain", "arena"):
                for state, figure in speeds(r, f"allreduce_{ranks}_loops_{loops}", memory, 64 * KI):
                    beside = f"beside {loops} endless loop{'s' if loops > 1 else ''}"
                    yield f"{ranks} ranks {beside}, {memory}, from 64 KiB: speed{state}", figure, AT_LEAST, limit
    yield "2 ranks, arena, from 64 MiB: share of the copy bandwidth", share_of_limit(r, "arena", 64 * MI), AT_LEAST, 0.8


def of_collectives(r):
    """Each collective over each MPI, 4 B to 64 MiB, in the four ways in which calls can follow each other."""
    for ranks in (2, 4):
        found = of_all_collectives(r, ranks)
        for collective, all_of_it in sorted(found.items()):
            yield f"{ranks} ranks, {collective}: worst speed over an MPI", worst(all_of_it), AT_LEAST, 0.9
        every = [ratio for all_of_it in found.values() for ratio, *_ in all_of_it]
        yield f"{ranks} ranks, all collectives: median speed over the MPIs", (statistics.median(every), "") if every else None, AT_LEAST, 1.3
    rooted = [one for name in ("broadcast", "reduce", "gather", "scatter") for one in found.get(name, []) if one[2] <= 64]
    yield "4 ranks, broadcast, reduce, gather, scatter up to 64 B: worst speed", worst(rooted), AT_LEAST, 1.0


def of_fusion(r):
    for memory, calls, limit in (("plain", 1.3, 1.2), ("arena", 1.8, 2.0)):
        yield f"ResNet-50, plan, {memory}: speed over 161 calls", fused(r, "resnet50", memory, "ratio_calls"), AT_LEAST, calls
        yield f"ResNet-50, plan, {memory}: speed over a packed buffer", fused(r, "resnet50", memory, "ratio_packed"), AT_LEAST, 4.0
        yield f"1000 x 1 KiB, plan, {memory}: speed over a packed buffer", fused(r, "1000x1KiB", memory, "ratio_packed"), AT_LEAST, limit
    yield "ResNet-50, run_and_apply with Adam, arena: speed over plan and step", joined_step(r, "arena"), AT_LEAST, 1.5
    yield "the same: optimizer state of a rank over the whole", joined_state(r, "arena"), AT_MOST, 0.5
    # On two ranks each steps half of the parameters in arenas by run_and_apply, and all of them by step().
    for form, file in (("", "optimizers"), (", compiled form", "optimizers_compiled")):
        for ranks, memory in ((1, "plain"), (1, "arena"), (2, "plain")):
            yield f"step() over run_and_apply, {ranks} rank{'s' if ranks > 1 else ''}, {memory}{form}", steps(r, f"{file}_{ranks}", memory), AT_MOST, 1.15


def of_engine(r):
    yield "4 KiB by an engine: microseconds", by_engine(r, "engine", "call", "time"), AT_MOST, 15.0
    yield "4 KiB by an engine beside 1 endless loop: microseconds", by_engine(r, "engine_loops_1", "call", "time"), AT_MOST, 40.0
    yield "ResNet-50 by an engine, in random orders: time over the plan's", by_engine(r, "engine", "resnet50", "ratio"), AT_MOST, 1.1
    yield "an engine at rest: percent of a core", by_engine(r, "engine", "rest", "percent"), AT_MOST, 0.1


def of_halves(r):
    for half in ("bfloat16", "float16"):
        for memory in ("plain", "arena"):
            yield f"{half}, {memory}, from 16 MiB of float: time over float's", half_of_float(r, half, memory), AT_MOST, 0.6
            yield f"{half}, {memory}: speed over an MPI_Op_create operation", half_over_user_operation(r, half, memory), AT_LEAST, 5.0


def of_compile_time(r):
    """User seconds over those of a program with Boost.MPI."""
    for header in ("hvd/threads.hpp", "hvd/mpi.hpp"):
        yield f"compile time, {header}, one allreduce", compiled(r, header, "program"), AT_MOST, 2.0
        yield f"compile time, {header}, one allreduce, compiled form", compiled(r, header, "compiled_program"), AT_MOST, 0.75
        for optimisation, limit in (("-O0", 2.5), ("-O2", 4.0)):
            yield f"compile time, {header}, trainer, {optimisation}", compiled(r, header, "trainer", "ratio", optimisation), AT_MOST, limit
        yield f"compile time, {header}, trainer, compiled form", compiled(r, header, "compiled_trainer"), AT_MOST, 1.3
        yield f"memory of the compiler, {header}, trainer: MB", compiled(r, header, "trainer", "megabytes"), AT_MOST, 250


# What ./run bench --check measures. All collectives take as long as the rest: they are there if they are named.
PARTS = {"allreduce": of_allreduce, "collectives": of_collectives, "fusion": of_fusion, "engine": of_engine, "halves": of_halves, "compile_time": of_compile_time}
UNNAMED = ("allreduce", "fusion", "engine", "halves", "compile_time")


def figures(r, parts):
    """(what, figure, relation, limit)"""
    for part in parts:
        yield from PARTS[part](r)
    yield "wrong elements in all of it", wrong_elements(r), AT_MOST, 0


def table(results, parts):
    lines = [f"{'figure':70} {'value':>8} {'limit':>9}  verdict"]
    counts = {"pass": 0, "fail": 0, "missing": 0}
    for what, figure, relation, limit in figures(results, parts):
        if figure is None:
            verdict, value, where = "missing", "-", ""
        else:
            met = figure[0] >= limit if relation == ">=" else figure[0] <= limit
            verdict, value, where = "pass" if met else "fail", f"{figure[0]:.2f}", figure[1]
        counts[verdict] += 1
        lines.append(f"{what:70} {value:>8} {relation} {limit:>6.2f}  {verdict}{'  ' + where if where else ''}")
    lines.append(", ".join(f"{count} {name}" for name, count in counts.items()))
    return lines, counts["fail"]


def headline(results, named):
    documents = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(results.folder.glob("*.json"), key=lambda file: -file.stat().st_mtime)]
    document = next((d for d in documents if isinstance(d.get("machine"), dict)), None)
    command = f"Command: `./run bench {' '.join(['--check', *named])}`."
    if document is None:
        return command
    machine, limit = document["machine"], max((d.get("copy_bandwidth", 0) for d in documents), default=0)
    limit = f"; all ranks copying read and write {limit:.1f} GB/s" if limit else ""
    return (f"{document['date']}, {machine['cpu']}, {machine['cores']} cores, {machine['system']}, g++ {machine['compiler']}, "
            f"{machine.get('mpi', 'no MPI')}{limit}. {command}")


def record(text):
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", help="the folder of the JSON files")
    parser.add_argument("parts", nargs="*", help=f"the parts that were measured, of {', '.join(PARTS)} (default: all but collectives)")
    parser.add_argument("--record", action="store_true", help="also keep the table in docs/benchmarks.md")
    arguments = parser.parse_args()
    results = Results(arguments.results)
    lines, failed = table(results, arguments.parts or UNNAMED)
    said = headline(results, arguments.parts)
    print("", said, *lines, sep="\n")
    if arguments.record:
        record("\n".join([said, "", "```", *lines, "```"]))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
