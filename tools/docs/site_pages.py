#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Makes the site, the pages and the API reference in one, with Doxygen: site_pages.py FOLDER [SOURCE_ROOT]

Doxygen reads copies of the pages, in its own dialect of Markdown: headings have identifiers, links lead to these, pictures are
plain images. The site is FOLDER/html."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import links_of_code
import modules
import moved
import search_index
from public_names import public_names

THEME = pathlib.Path("/usr/share/doxygen-awesome-css")
LUNR = pathlib.Path("/usr/share/javascript/lunr/lunr.min.js")
# doxygen-awesome puts its switch beside the element MSearchBox.
SEARCH = """  <td id="hvd-search-box"><input id="hvd-search" type="search" placeholder="Search" aria-label="Search" autocomplete="off"/>
   <ul id="hvd-found" aria-label="Search results" hidden></ul><span id="MSearchBox" hidden></span></td>
"""

# The navigation. A page in docs/ or examples/ that is not listed is an error. A listed page that does not exist is left out.
SECTIONS = {
    "Guide": ["docs/guide/train_on_all_ranks.md", "docs/guide/overlap.md", "docs/guide/mixed_precision.md", "docs/guide/save_and_resume.md",
              "docs/guide/learning_rate.md", "docs/guide/gradient_accumulation.md", "docs/guide/loading_data.md", "docs/guide/uneven_data.md",
              "docs/guide/sparse_tables.md", "docs/guide/elastic_jobs.md", "docs/guide/when_it_hangs.md", "docs/guide/when_it_is_slow.md",
              "docs/guide/many_machines.md", "docs/guide/with_libraries.md", "docs/guide/your_own_engine.md", "docs/guide/one_flat_buffer.md",
              "docs/guide/from_c.md", "docs/guide/compiled_form.md", "docs/guide/reproduce.md", "docs/questions.md", "docs/install.md", "docs/containers.md"],
    "Coming from elsewhere": ["docs/from_horovod.md", "docs/from_pytorch.md", "docs/from_mpi.md", "docs/from_nccl.md", "docs/in_your_framework.md", "docs/comparison.md"],
    "Subjects": ["docs/concepts.md", "docs/training.md", "docs/data.md", "docs/data_service.md", "docs/engine.md", "docs/device.md", "docs/elastic.md",
                 "docs/launching.md", "docs/tcp.md", "docs/observing.md", "docs/statistics.md", "docs/your_own_types.md", "docs/determinism.md"],
    "Reference": ["docs/reference/collectives.md", "docs/reference/options.md", "docs/reference/training.md", "docs/reference/elastic.md", "docs/reference/settings.md", "docs/reference/files.md", "docs/reference/data.md", "docs/reference/nccl.md", "docs/reference/hvdrun.md", "docs/reference/hvd_info.md", "docs/reference/tuning.md", "docs/reference/errors.md", "docs/reference/compile_errors.md", "docs/reference/benchmarks.md", "docs/reference/names_of_horovod.md", "docs/reference/names_of_mpi.md", "docs/reference/names_of_pytorch.md", "docs/reference/names_of_nccl.md", "docs/surface.md", "docs/reference/horovod_behaviours.md"],
    "Examples": ["examples/fashion_mnist/README.md", "examples/torch_mnist/README.md", "examples/dlib_mnist/README.md", "examples/word2vec/README.md", "examples/augment/README.md",
                 "examples/custom_engine/README.md", "examples/inference/README.md"],
    "Figures": ["docs/benchmarks.md", "docs/scaling.md", "docs/log/allreduce.md", "docs/log/nodes.md", "docs/log/scaling.md", "docs/log/other.md", "docs/log/training.md", "docs/log/elastic.md", "docs/log/data_service.md"],
    "Inside": ["docs/internals.md", "docs/reference/code.md", "docs/way_of_a_gradient.md", "docs/way_of_a_named_tensor.md", "docs/way_of_a_commit.md", "docs/way_of_a_device_call.md",
               "docs/testing.md", "docs/adding_a_backend.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"],
}
# What the pages of a part of the navigation count in the search: those that answer a question come before those that list or record.
WEIGHTS = {"Guide": 1.6, "Coming from elsewhere": 1.2, "Reference": 0.8, "Examples": 0.7, "Figures": 0.5, "Inside": 0.5}
REFERENCE = """<tab type="usergroup" visible="yes" title="API">
  <tab type="modules" visible="yes" title="Modules"/>
  <tab type="classlist" visible="yes" title="Classes"/>
  <tab type="concepts" visible="yes" title="Concepts"/>
  <tab type="classindex" visible="yes" title="Index of classes"/>
  <tab type="filelist" visible="yes" title="Headers"/>
  <tab type="examples" visible="yes" title="Sources of the examples"/>
</tab>"""

FENCE = re.compile(r"^```.*?^```$", re.M | re.S)


class Failure(Exception):
    pass


def identifier(page):
    """Returns the name of a page in links and in the site: page_concepts for docs/concepts.md, page_log_elastic for docs/log/elastic.md."""
    stem = page.parent.name if page.name == "README.md" else page.stem
    if page.parent.parent.name == "docs":
        stem = f"{page.parent.name}_{stem}"
    return "page_" + stem.lower()


def slug(heading):
    """Returns the anchor that GitHub and others give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def section_identifier(title):
    return "section_" + slug(title).replace("-", "_")


def escaped(path):
    """Returns the name of the page that Doxygen makes of an example's source."""
    return str(path).replace("/", "_2").replace(".", "_8") + "-example.html"


class Site:
    def __init__(self, root, folder):
        self.root, self.folder = root, folder
        self.copies = folder / "pages"
        self.sources, self.images, self.searched = set(), set(), []
        self.pages = {title: [root / page for page in pages if (root / page).is_file()] for title, pages in SECTIONS.items()}
        listed = {page for pages in self.pages.values() for page in pages}
        if missing := [page for page in [*root.glob("docs/**/*.md"), *root.glob("examples/*/README.md")] if page not in listed]:
            raise Failure("these pages have no place in the navigation (SECTIONS in tools/docs/site_pages.py): " + ", ".join(map(str, missing)))
        self.weights = {page: WEIGHTS.get(title, 1) for title, pages in self.pages.items() for page in pages}
        self.known = listed | {root / "README.md"}

    def reference(self, page, target):
        """Returns the target of a link in the form that Doxygen needs."""
        if "://" in target:
            return target
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if file.is_dir() and (file / "README.md") in self.known:
            file /= "README.md"
        if file in self.known:
            name = "index" if file == self.root / "README.md" else identifier(file)
            return f"@ref {name}-{anchor}" if anchor else f"@ref {name}"
        relative = file.relative_to(self.root)
        if relative.parts[0] == "include":
            return f"@ref {relative.relative_to('include')}"
        if not file.is_file():
            raise Failure(f"{page.name}: a link to what is no page and no file: {target}")
        self.sources.add(relative)
        return escaped(relative)

    def picture(self, page, text, target):
        self.images.add((page.parent / target).resolve())
        return f'<img src="{pathlib.Path(target).name}" alt="{text}"/>'

    def prose(self, page, text):
        """Returns a part of a page, without code blocks, in Doxygen's dialect."""
        name = "index" if page == self.root / "README.md" else identifier(page)
        text = re.sub(r"^##+ (.*)$", lambda found: f"{found[0]} {{#{name}-{slug(found[1])}}}", text, flags=re.M)
        text = re.sub(r"<!--.*?-->\n?", lambda found: "\n" * found[0].count("\n"), text, flags=re.S)
        text = re.sub(r"!\[([^\]]*)\]\(([^)\s]+)\)", lambda found: self.picture(page, found[1], found[2]), text)
        # Doxygen loses the rest of the page after a link whose text goes over two lines.
        text = re.sub(r"\[[^\]\n]*\n[^\]\n]*\]\(", lambda found: found[0].replace("\n", " "), text)
        parts = re.split(r"(`[^`]+`)", text)
        for i in range(0, len(parts), 2):
            parts[i] = re.sub(r"\]\(([^)\s]+)\)", lambda found: f"]({self.reference(page, found[1])})", parts[i])
        return "".join(parts)

    def copy(self, page):
        text = page.read_text()
        if page.suffix != ".md":
            (self.copies / "LICENSE.dox").write_text(f"/** @page {identifier(page)} Licence\n@verbinclude {page.name}\n*/\n")
            self.searched.append((self.title(page), "", f"{identifier(page)}.html", "Apache License 2.0", self.weights[page]))
            return
        self.note_words(page, FENCE.sub("", text))
        blocks = FENCE.findall(text)
        text = "\0".join(self.prose(page, part) for part in FENCE.split(text))
        if page != self.root / "README.md":
            has_contents = re.search(r"^- \[[^\]]*\]\(@ref " + identifier(page) + "-", text, re.M)
            contents = "\n\n[TOC]" if text.count("\n## ") > 2 and not has_contents else ""
            text = re.sub(r"^# (.*)$", rf"# \1 {{#{identifier(page)}}}{contents}", text, count=1, flags=re.M)
        for block in blocks:
            text = text.replace("\0", block, 1)
        (self.copies / f"{'README' if page.name == 'README.md' and page.parent == self.root else identifier(page)}.md").write_text(text)

    def note_words(self, page, text):
        """Notes the words of each section of a page for the search."""
        name = "index" if page == self.root / "README.md" else identifier(page)
        for number, part in enumerate(re.split(r"^##+ ", text, flags=re.M)):
            heading, _, body = part.partition("\n") if number else ("", "", part)
            address = f"{name}.html" + (f"#{name}-{slug(heading)}" if heading else "")
            self.searched.append((self.title(page), heading, address, body, self.weights.get(page, 1)))

    def sections(self):
        """Writes a page for each section of the navigation, above its pages."""
        for title, pages in self.pages.items():
            subpages = "\n".join(f"- @subpage {identifier(page)}" for page in pages)
            (self.copies / f"{section_identifier(title)}.dox").write_text(
                f"/** @page {section_identifier(title)} {title}\n{subpages}\n*/\n")
        examples = "\n".join(f"/** @example {source} */" for source in sorted(self.sources))
        (self.copies / "examples.dox").write_text(examples + "\n" + modules.groups())

    def layout(self):
        subprocess.run(["doxygen", "-l", self.folder / "layout.xml"], check=True, stdout=subprocess.DEVNULL)
        tabs = ['<tab type="mainpage" visible="yes" title="hvd"/>']
        for title, pages in self.pages.items():
            inner = "".join(f'<tab type="user" visible="yes" url="@ref {identifier(page)}" title="{self.title(page)}"/>' for page in pages)
            tabs.append(f'<tab type="usergroup" visible="yes" url="@ref {section_identifier(title)}" title="{title}">{inner}</tab>')
        text = (self.folder / "layout.xml").read_text()
        tabs = "\n".join([*tabs, REFERENCE])
        text = re.sub(r"<navindex>.*</navindex>", lambda _: f"<navindex>\n{tabs}\n</navindex>", text, flags=re.S)
        # The modules list the functions, types and values of a namespace.
        text = re.sub(r"(<namespace>.*?<memberdecl>)(.*?)(</memberdecl>)", r'\1<nestednamespaces visible="yes" title=""/>\3', text, flags=re.S)
        # A class is described before its members are listed.
        described = '<detaileddescription title=""/>'
        text = re.sub(rf"(<class>.*?<briefdescription [^>]*>)(.*?){described}", rf"\1{described}\2", text, flags=re.S)
        (self.folder / "layout.xml").write_text(text)

    def title(self, page):
        found = re.search(r"^# (.*)$", page.read_text(), re.M)
        return found[1] if found else "Licence"

    def header(self):
        """Returns the settings for the head of each page: the search, and doxygen-awesome if it is installed."""
        header = self.folder / "header.html"
        subprocess.run(["doxygen", "-w", "html", header, self.folder / "footer.html", self.folder / "style.css"], check=True,
                       stdout=subprocess.DEVNULL)
        scripts = [LUNR, self.root / "tools/docs/search.js", self.root / "tools/docs/moved.js"]
        themes = [THEME / f"doxygen-awesome-{name}.js" for name in ("darkmode-toggle", "fragment-copy-button", "paragraph-link")] if THEME.is_dir() else []
        begin = "".join(f"{name}.init();" for name in ("DoxygenAwesomeDarkModeToggle", "DoxygenAwesomeFragmentCopyButton", "DoxygenAwesomeParagraphLink")) if themes else ""
        names = ["search_data.js", "moved_data.js", *(script.name for script in scripts + themes)]
        lines = "".join(f'<script src="$relpath^{name}"></script>\n' for name in names)
        text = header.read_text().replace("</head>", f"<script>const hvdSiteRoot = '$relpath^';</script>\n{lines}<script>{begin}</script>\n</head>")
        text = text.replace('<html xmlns="http://www.w3.org/1999/xhtml">', '<html xmlns="http://www.w3.org/1999/xhtml" lang="en">')
        text = re.sub(r"  <!--BEGIN DISABLE_INDEX-->\n   <!--BEGIN SEARCHENGINE-->.*?<!--END DISABLE_INDEX-->\n", lambda _: SEARCH, text, flags=re.S)
        if SEARCH not in text:
            raise Failure("this Doxygen's header has no place for the search")
        header.write_text(text)
        style = f"HTML_EXTRA_STYLESHEET = {THEME / 'doxygen-awesome.css'}\n" if themes else ""
        return f"HTML_HEADER = {header}\n{style}HTML_EXTRA_FILES = {' '.join(map(str, scripts + themes))}\n"

    def address(self, page, place=""):
        """Returns the address of a page, or of a section in it."""
        name = identifier(self.root / page)
        return f"{name}.html#{name}-{place}" if place else f"{name}.html"

    def redirects(self):
        places = {}
        for old, new, anchors in moved.SECTIONS:
            text = (self.folder / "html" / self.address(new)).read_text()
            for anchor in anchors.split():
                target = self.address(new, anchor)
                if f'id="{target.partition("#")[2]}"' not in text:
                    raise Failure(f"{old}#{anchor} leads on to {new}, which has no such section")
                places[self.address(old, anchor)] = target
        (self.folder / "html/moved_data.js").write_text(f"const hvdMoved = {json.dumps(places, indent=0)};\n")
        for old, new in moved.PAGES.items():
            self.redirect(self.address(old), self.address(new))

    def redirect(self, old, new):
        """Writes a page that leads on, also to the sections of the new one."""
        if not (self.folder / "html" / new).is_file():
            raise Failure(f"{old} leads on to {new}, which is no page")
        before, after = pathlib.PurePath(old).stem, pathlib.PurePath(new).stem
        (self.folder / "html" / old).write_text(
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/><title>Moved</title>'
            f"<script>location.replace('{new}' + location.hash.replace('#{before}-', '#{after}-'));</script>"
            f'<noscript><meta http-equiv="refresh" content="0; url={new}"/></noscript>'
            f'<link rel="canonical" href="{new}"/></head><body><a href="{new}">{after}</a></body></html>\n')

    def version(self):
        return re.search(r'HVD_VERSION_STRING "(.*)"', (self.root / "include/hvd/version.hpp").read_text())[1]

    def make(self):
        for made in (self.copies, self.folder / "html"):
            shutil.rmtree(made, ignore_errors=True)
        self.copies.mkdir(parents=True)
        for page in sorted(self.known):
            self.copy(page)
        self.sections()
        self.layout()
        settings = (self.root / "tools/docs/Doxyfile").read_text() + self.header()
        settings += f"OUTPUT_DIRECTORY = {self.folder}\nLAYOUT_FILE = {self.folder / 'layout.xml'}\nINPUT += {self.copies}\n"
        settings += f"HTML_EXTRA_STYLESHEET += {self.root / 'tools/docs/site.css'}\n"
        settings += f"USE_MDFILE_AS_MAINPAGE = {self.copies / 'README.md'}\n"
        settings += f"HTML_EXTRA_FILES += {' '.join(map(str, sorted(self.images)))}\n"
        settings += f"PROJECT_NUMBER = {self.version()}\nGENERATE_TAGFILE = {self.folder / 'hvd.tag'}\n"
        settings += modules.filters(self.folder, self.root)
        (self.folder / "Doxyfile").write_text(settings)
        subprocess.run(["doxygen", self.folder / "Doxyfile"], cwd=self.root, check=True)
        links_of_code.mend(self.folder / "html")
        self.redirects()
        declared = {}
        for name, header in public_names(self.root).items():
            space, _, word = name.rpartition("::")
            declared.setdefault((modules.of_header(header), word), []).append(space)
        search_index.write(self.folder / "html", self.searched, self.folder / "hvd.tag", declared)


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1]).resolve()
    root = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else pathlib.Path(__file__).parents[2]).resolve()
    try:
        Site(root, folder).make()
    except (Failure, subprocess.CalledProcessError) as failure:
        sys.exit(f"site_pages.py: {failure}")
    print(folder / "html/index.html")
