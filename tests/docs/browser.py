#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The site works in a browser, from files: browser.py SOURCE_ROOT

  links     each link of each page leads to a page and a place that exist; those that scripts make included where it is opened
  way back  each page shows the way to the front page; on a narrow screen it shows the menu, and is no wider than the screen
  pictures  each picture of each page is really drawn; the front page has one
  search    the search finds each public name that the headers declare, each page of the guide, and the topics of searches.py
  moved     old addresses of pages and sections lead to where these are now
  scripts   no script of a page fails

All pages of the guide are opened, and one in ten of the reference, whose scripts are the same. The others are read.
A check without Chromium, its driver or Selenium exits with 77."""

import html.parser
import os
import pathlib
import shutil
import sys
import tempfile
import time
import urllib.parse

import searches

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
except ImportError:
    # The distribution's package is for the distribution's Python.
    if sys.executable != "/usr/bin/python3" and os.access("/usr/bin/python3", os.X_OK) and "HVD_PYTHON_TRIED" not in os.environ:
        os.execve("/usr/bin/python3", ["/usr/bin/python3", *sys.argv], os.environ | {"HVD_PYTHON_TRIED": "1"})
    print("Selenium for Python is not installed; ./run test --all installs it")
    sys.exit(77)

WIDE, NARROW = (1280, 900), (360, 800)

LOOK = """
const shown = e => e.getClientRects().length > 0 && getComputedStyle(e).visibility != 'hidden';
const broken = i => !(i.complete && i.naturalWidth > 0);
return {links: [...new Set([...document.links].map(a => a.href))],
        places: [...document.querySelectorAll('[id],a[name]')].map(e => e.id || e.name),
        back: [...document.links].some(a => a.href.split('#')[0].endsWith('/index.html') && shown(a)),
        button: [...document.querySelectorAll('#main-menu-state, .main-menu-btn')].some(shown),
        too_wide: document.querySelector('#doc-content').scrollWidth > innerWidth,
        pictures: [...document.images].filter(i => i.closest('.contents')).length,
        broken: [...document.images].filter(i => i.closest('.contents') && broken(i)).map(i => i.src)};
"""

FOUND = """
const list = document.getElementById('hvd-found');
return list.dataset.query != arguments[0] ? null
    : [...list.querySelectorAll('a')].map(a => ({kind: a.className, link: a.href, name: a.firstChild.data, scope: a.lastChild.textContent}));
"""
TYPE = """
const field = document.getElementById('hvd-search');
field.value = arguments[0];
field.dispatchEvent(new Event('input'));
"""


def browser(width, height):
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if not driver or not chromium:
        print("Chromium and its driver are not installed; ./run test --all installs them")
        sys.exit(77)
    options = Options()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "SEVERE"})
    for argument in ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", f"--window-size={width},{height}"]:
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    made = webdriver.Chrome(service=Service(driver), options=options)
    # A window is not made as narrow as a phone.
    made.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
    return made


def until(condition, seconds=20):
    """Waits until a condition is true or the time has passed, and returns its last value."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return value


def file_of(url):
    return pathlib.Path(urllib.parse.unquote(urllib.parse.urlparse(url).path))


def visit(driver, pages):
    """Opens each page and returns its links, places, pictures and failures, by its file."""
    seen = {}
    for page in pages:
        driver.get(page.as_uri())
        until(lambda: driver.execute_script("return document.readyState == 'complete' && !!document.querySelector('#main-menu a')"))
        seen[page] = driver.execute_script(LOOK)
        seen[page]["failures"] = [entry["message"] for entry in driver.get_log("browser")]
    return seen


class Reader(html.parser.HTMLParser):
    """Reads the links and places of a page that no browser opens."""

    def __init__(self, page):
        super().__init__()
        self.links, self.places = set(), set()
        self.page = page
        self.feed(page.read_text())

    def handle_starttag(self, tag, attributes):
        said = dict(attributes)
        self.places.update(said[word] for word in ("id", "name") if said.get(word))
        if tag == "a" and said.get("href"):
            self.links.add(urllib.parse.urljoin(self.page.as_uri(), said["href"]))


def check_links(views, site):
    for page, view in views.items():
        for link in view["links"]:
            target, place = file_of(link), urllib.parse.unquote(urllib.parse.urlparse(link).fragment)
            if not link.startswith("file:"):
                if not link.startswith(("https://", "javascript:", "mailto:")):
                    yield f"{page.name}: a link to what is no page: {link}"
            elif not target.is_file() or not target.is_relative_to(site):
                yield f"{page.name}: a dead link: {link}"
            elif place and target in views and place not in views[target]["places"]:
                yield f"{page.name}: a link to a place that {target.name} does not have: #{place}"


def check_pictures(seen, site):
    if not seen[site / "index.html"]["pictures"]:
        yield "the front page has no picture"
    for page, view in seen.items():
        yield from (f"{page.name}: a picture is not drawn: {source}" for source in view["broken"])


def results(driver, words):
    """Types words into the search and returns what it shows, the first result first: [{kind, link, name, scope}]"""
    driver.execute_script(TYPE, words)
    return until(lambda: driver.execute_script(FOUND, words), 5) or []


def check_search(driver, site, names, titles):
    driver.get((site / "index.html").as_uri())
    field = until(lambda: driver.find_elements(By.ID, "hvd-search"))[0]
    field.send_keys("engine")  # keys of a person, once
    if not until(lambda: driver.execute_script(FOUND, "engine")):
        yield "the search shows nothing for keys that are typed"
    for name in names:
        space, _, word = name.rpartition("::")
        found = [each for each in results(driver, name) if each["name"] == word and each["scope"] == space]
        if not found:
            yield f"the search does not find {name}"
        elif not file_of(found[0]["link"]).is_file():
            yield f"the search leads nowhere for {name}"
    for words in titles:
        if words not in [each["name"] for each in results(driver, words)]:
            yield f"the search does not find {words}"


def check_moved(driver, site, pages):
    """An old address opens the page that has the section now, and shows that section."""
    import moved
    sections = {pages.address(old, anchor): pages.address(new, anchor) for old, new, anchors in moved.SECTIONS for anchor in anchors.split()}
    whole = {pages.address(old): pages.address(new) for old, new in moved.PAGES.items()}
    inside = {pages.address(old, "join"): pages.address(new, "join") for old, new in moved.PAGES.items()}
    for old, new in (sections | whole | inside).items():
        driver.get("about:blank")  # so that the next address is another page
        driver.get((site / "index.html").as_uri().replace("index.html", old))
        if not until(lambda: driver.current_url.endswith(f"/{new}"), 5):
            yield f"{old} leads to {driver.current_url.rpartition('/')[2]}, and not to {new}"


def check_topics(driver):
    """Each topic has the right page among the first three results."""
    for words, wanted in searches.ALL.items():
        first = [file_of(each["link"]).stem.removeprefix("page_") for each in results(driver, words)][:3]
        if not set(first) & set(wanted.split()):
            yield f"the search for \"{words}\" shows first {', '.join(first) or 'nothing'}, and not {wanted}"


def check(root, folder):
    sys.path.insert(0, str(root / "tools/docs"))
    from public_names import public_names
    from site_pages import Site
    if not shutil.which("doxygen"):
        print("Doxygen is not installed; ./run docs installs it")
        sys.exit(77)
    pages = Site(root, folder)
    pages.make()
    site = folder / "html"
    driver = browser(*WIDE)
    try:
        guide = {site / "index.html", *site.glob("page_*.html")}
        reference = sorted(set(site.glob("*.html")) - guide)
        seen = visit(driver, [*sorted(guide), *reference[::10]])
        read = {page: vars(Reader(page)) for page in set(reference) - seen.keys()}
        views = seen | read
        print(f"{len(seen)} pages opened, {len(read)} read, {sum(len(view['links']) for view in views.values())} links, "
              f"{sum(view['pictures'] for view in seen.values())} pictures")
        yield from check_links(views, site)
        yield from check_pictures(seen, site)
        failures = {failure for view in seen.values() for failure in view["failures"]}
        yield from (f"a script fails: {failure}" for failure in sorted(failures))
        if failures:
            return
        yield from (f"{page.name}: no way back to the front page" for page, view in seen.items() if not view["back"])
        names = public_names(root)
        print(f"{len(names)} public names")
        titles = [pages.title(page) for section in pages.pages.values() for page in section]
        yield from check_search(driver, site, names, titles)
        yield from check_topics(driver)
        yield from check_moved(driver, site, pages)
    finally:
        driver.quit()
    driver = browser(*NARROW)
    try:
        some = [site / "index.html", *sorted(site.glob("page_*.html"))]
        for page, view in visit(driver, some).items():
            if not view["button"]:
                yield f"{page.name}: no menu on a narrow screen"
            if view["too_wide"]:
                yield f"{page.name}: wider than a narrow screen"
    finally:
        driver.quit()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        problems = list(check(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(name).resolve()))
    print(*problems, sep="\n")
    sys.exit(1 if problems else 0)
