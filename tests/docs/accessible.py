#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The pages of the guide pass axe-core, in the light and in the dark: accessible.py SOURCE_ROOT

axe-core comes from a package of Python. The test exits with 77 without it, or without Chromium, its driver or Selenium."""

import pathlib
import sys
import tempfile

import browser

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from packages import environment_with  # noqa: E402

ASK = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ['violations']}).then(
    found => done(found.violations.map(v => `${v.id}: ${v.help}: ${v.nodes.map(n => n.html).slice(0, 3).join(' ')}`)),
    failure => done(['axe-core fails: ' + failure]));
"""


def violations(driver, pages, axe):
    for page in pages:
        driver.get(page.as_uri())
        browser.until(lambda: driver.execute_script("return document.readyState == 'complete' && !!document.querySelector('#main-menu a')"))
        driver.execute_script(axe)
        yield from (f"{page.name}: {found}" for found in driver.execute_async_script(ASK))


def check(root, folder):
    sys.path.insert(0, str(root / "tools/docs"))
    from site_pages import Site
    axe = next(environment_with(folder / "venv", "axe-core-python==0.1.0").rglob("axe.min.js")).read_text()
    Site(root, folder / "site").make()
    site = folder / "site/html"
    pages = [site / "index.html", *sorted(site.glob("page_*.html"))]
    for scheme in ("light", "dark"):
        driver = browser.browser(*browser.WIDE)
        driver.set_script_timeout(120)
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        try:
            found = list(violations(driver, pages, axe))
        finally:
            driver.quit()
        print(f"{scheme}: {len(pages)} pages, {len(found)} violations")
        yield from found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        problems = list(check(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(name).resolve()))
    print(*problems, sep="\n")
    sys.exit(1 if problems else 0)
