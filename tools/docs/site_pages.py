#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Makes the site, the pages and the API reference in one, with Doxygen: site_pages.py FOLDER [SOURCE_ROOT]

Doxygen reads copies of the pages, in its own dialect of Markdown: headings have identifiers, links lead to these, pictures are
plain images. The site is FOLDER/html."""

import pathlib
import re
import shutil
import subprocess
import sys

import search_index

THEME = pathlib.Path("/usr/share/doxygen-awesome-css")

# The navigation. A page in docs/ or examples/ that is not listed is an error. A listed page that does not exist is left out.
SECTIONS = {
    "Guide": ["docs/install.md", "docs/training.md", "docs/data.md", "docs/data_service.md", "docs/in_your_framework.md", "docs/concepts.md", "docs/engine.md", "docs/observing.md", "docs/statistics.md", "docs/your_own_types.md", "docs/device.md", "docs/errors.md", "docs/launching.md", "docs/containers.md", "docs/tcp.md", "docs/elastic.md", "docs/tuning.md", "docs/surface.md",
              "docs/determinism.md", "docs/questions.md"],
    "Coming from elsewhere": ["docs/from_mpi.md", "docs/from_horovod.md", "docs/from_pytorch.md", "docs/from_nccl.md", "docs/comparison.md", "docs/horovod_behaviours.md"],
    "Examples": ["examples/fashion_mnist/README.md", "examples/torch_mnist/README.md", "examples/dlib_mnist/README.md", "examples/word2vec/README.md", "examples/augment/README.md",
                 "examples/custom_engine/README.md", "examples/inference/README.md"],
    "Inside": ["docs/internals.md", "docs/way_of_a_gradient.md", "docs/way_of_a_named_tensor.md", "docs/way_of_a_commit.md", "docs/way_of_a_device_call.md",
               "docs/testing.md", "docs/adding_a_backend.md", "docs/benchmarks.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"],
}
REFERENCE = """<tab type="usergroup" visible="yes" title="Reference">
  <tab type="user" visible="yes" url="@ref hvd" title="Functions and values"/>
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
    """Returns the name of a page in links and in the site: page_concepts for docs/concepts.md."""
    stem = page.parent.name if page.name == "README.md" else page.stem
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
        if missing := [page for page in [*root.glob("docs/*.md"), *root.glob("examples/*/README.md")] if page not in listed]:
            raise Failure("these pages have no place in the navigation (SECTIONS in tools/docs/site_pages.py): " + ", ".join(map(str, missing)))
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
            self.searched.append((self.title(page), heading.replace("`", ""), address, re.sub(r"\]\([^)]*\)|<!--.*?-->", "", body)))

    def sections(self):
        """Writes a page for each section of the navigation, above its pages."""
        for title, pages in self.pages.items():
            subpages = "\n".join(f"- @subpage {identifier(page)}" for page in pages)
            (self.copies / f"{section_identifier(title)}.dox").write_text(
                f"/** @page {section_identifier(title)} {title}\n{subpages}\n*/\n")
        examples = "\n".join(f"/** @example {source} */" for source in sorted(self.sources))
        (self.copies / "examples.dox").write_text(examples + "\n")

    def layout(self):
        subprocess.run(["doxygen", "-l", self.folder / "layout.xml"], check=True, stdout=subprocess.DEVNULL)
        tabs = ['<tab type="mainpage" visible="yes" title="hvd"/>']
        for title, pages in self.pages.items():
            inner = "".join(f'<tab type="user" visible="yes" url="@ref {identifier(page)}" title="{self.title(page)}"/>' for page in pages)
            tabs.append(f'<tab type="usergroup" visible="yes" url="@ref {section_identifier(title)}" title="{title}">{inner}</tab>')
        text = (self.folder / "layout.xml").read_text()
        tabs = "\n".join([*tabs, REFERENCE])
        text = re.sub(r"<navindex>.*</navindex>", lambda _: f"<navindex>\n{tabs}\n</navindex>", text, flags=re.S)
        # A class is described before its members are listed.
        described = '<detaileddescription title=""/>'
        text = re.sub(rf"(<class>.*?<briefdescription [^>]*>)(.*?){described}", rf"\1{described}\2", text, flags=re.S)
        (self.folder / "layout.xml").write_text(text)

    def title(self, page):
        found = re.search(r"^# (.*)$", page.read_text(), re.M)
        return found[1] if found else "Licence"

    def theme(self):
        """Returns the settings for doxygen-awesome if it is installed. Without it the site looks as Doxygen makes it."""
        if not THEME.is_dir():
            return ""
        header = self.folder / "header.html"
        subprocess.run(["doxygen", "-w", "html", header, self.folder / "footer.html", self.folder / "style.css"], check=True,
                       stdout=subprocess.DEVNULL)
        scripts = ["doxygen-awesome-darkmode-toggle.js", "doxygen-awesome-fragment-copy-button.js", "doxygen-awesome-paragraph-link.js"]
        begin = "DoxygenAwesomeDarkModeToggle.init();DoxygenAwesomeFragmentCopyButton.init();DoxygenAwesomeParagraphLink.init();"
        lines = "".join(f'<script src="$relpath^{script}"></script>\n' for script in scripts)
        header.write_text(header.read_text().replace("</head>", f"{lines}<script>{begin}</script>\n</head>"))
        return (f"HTML_HEADER = {header}\nHTML_EXTRA_STYLESHEET = {THEME / 'doxygen-awesome.css'}\n"
                f"HTML_EXTRA_FILES = {' '.join(str(THEME / script) for script in scripts)}\n")

    def make(self):
        for made in (self.copies, self.folder / "html"):
            shutil.rmtree(made, ignore_errors=True)
        self.copies.mkdir(parents=True)
        for page in sorted(self.known):
            self.copy(page)
        self.sections()
        self.layout()
        settings = (self.root / "tools/docs/Doxyfile").read_text() + self.theme()
        settings += f"OUTPUT_DIRECTORY = {self.folder}\nLAYOUT_FILE = {self.folder / 'layout.xml'}\nINPUT += {self.copies}\n"
        settings += f"HTML_EXTRA_STYLESHEET += {self.root / 'tools/docs/site.css'}\n"
        settings += f"USE_MDFILE_AS_MAINPAGE = {self.copies / 'README.md'}\n"
        settings += f"HTML_EXTRA_FILES += {' '.join(map(str, sorted(self.images)))}\n"
        (self.folder / "Doxyfile").write_text(settings)
        subprocess.run(["doxygen", self.folder / "Doxyfile"], cwd=self.root, check=True)
        search_index.extend(self.folder / "html/search", self.searched)


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1]).resolve()
    root = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else pathlib.Path(__file__).parents[2]).resolve()
    try:
        Site(root, folder).make()
    except (Failure, subprocess.CalledProcessError) as failure:
        sys.exit(f"site_pages.py: {failure}")
    print(folder / "html/index.html")
