#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Checks that the pages are true: pages.py CHECK SOURCE_ROOT [ARGUMENT...]

  code                  each ```cpp block is a part of a compiled file, named by the comment before it
                        (<!-- FILE REGION -->), or a program with a main(); the forms of
                        docs/from_X.md and docs/reference/names_of_X.md are in from_X.cpp
  calls                 docs/reference/names_of_pytorch.md and names_of_nccl.md have a row for each name of these libraries
  links                 links lead somewhere, also those to headings
  headers               the headers and folders that docs/internals.md, docs/reference/code.md and docs/way_of_*.md name exist
  names                 the files of the table of questions of docs/reference/code.md define the functions beside them, and those of the ways theirs
  rooms                 the tables of rooms are made of the list in tools/docs/rooms.py
  surface               docs/surface.md is made of the headers, and has each public name; pages and examples include doors alone
  options               docs/reference/options.md is made of the headers, and each member has a meaning
  compile_errors        docs/reference/compile_errors.md is made of the programs that must not compile
  commands              each ./run command exists
  pictures              docs/images/*.svg are what draw.py draws; benchmarks.svg has the figures of docs/benchmarks.md
  tests                 docs/reference/horovod_behaviours.md names tests that exist, and has each row of its table filled
  emulation             the table of tests/emulation/README.md has a row for each function of CUDA and NCCL
  snippets              every @snippet of the headers exists
  claims [BUILD_ROOT]   each figure of README.md and docs/comparison.md has a date and a command beside it, and each row of the comparison
                        what stands behind it: tests of the build, if one is given
  site                  the site is built without warnings; its search has each public name, and it shows its version
  programs BUILD_ROOT TARGET [MPICXX MPIEXEC...]
                        the programs of the pages compile and run, those with MPI as README.md says
  errors PROGRAM BACKEND [MPIEXEC...]
                        the error texts of docs/reference/errors.md are what PROGRAM prints
"""

import filecmp
import fnmatch
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/docs"))

import compile_errors  # noqa: E402
import names_of_others  # noqa: E402
import options  # noqa: E402
import rooms  # noqa: E402
import surface  # noqa: E402
from public_names import defined_names, public_names  # noqa: E402

FEWEST_QUESTIONS = 60
CELLS = r"^\|[^|]*\|(.*)\|$"
BLOCK = re.compile(r"^(?:<!-- (?P<comment>[^\n]*?) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)


def pages(root):
    return [root / "README.md", root / "CHANGELOG.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md")),
            *sorted(root.glob("examples/*/README.md"))]


def blocks(page, language):
    return [block for block in BLOCK.finditer(page.read_text()) if block["language"] == language]


def without_code(text):
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))


def region(root, file, name):
    """Returns the part of a file between two lines `//! [name]`, or None."""
    mark = rf"^[ \t]*//! \[{re.escape(name)}\]$"
    found = re.search(mark + r"\n(.*?)" + mark, (root / file).read_text(), re.M | re.S)
    if not found:
        return None
    return textwrap.dedent(re.sub(r"^[ \t]*//! \[.*\]\n", "", found[1], flags=re.M)).strip("\n")


def is_program(block):
    """Programs with a header of their own are files of a test, which compiles them."""
    return "int main(" in block["text"] and '#include "' not in block["text"]


def spaceless(text):
    return re.sub(r"\s+", "", text)


def check_code(root):
    for page in pages(root):
        for block in [*blocks(page, "cpp"), *blocks(page, "c")]:
            if is_program(block) and block["language"] == "cpp":
                continue
            first = block["text"].split("\n", 1)[0]
            file, _, name = (block["comment"] or "").partition(" ")
            if not file or not (root / file).is_file():
                yield f"{page.name}: a block of code names no file: {first}"
            elif region(root, file, name) is None:
                yield f"{page.name}: {file} has no region [{name}]"
            elif region(root, file, name) != block["text"].strip("\n"):
                yield f"{page.name}: [{name}] is not what stands in {file}"
    for name, lines in {"from_horovod": CELLS, "from_mpi": r"^(.*)$", "from_pytorch": CELLS, "from_nccl": CELLS}.items():
        yield from check_forms(root, name, name, lines)
    for name in ("horovod", "mpi", "pytorch", "nccl"):
        yield from check_forms(root, f"reference/names_of_{name}", f"from_{name}", CELLS)


def check_forms(root, page, name, lines):
    """Each form on a page of the others' calls, the lines' code with a bracket or an assignment, is in its test."""
    code = spaceless((root / f"tests/docs/{name}.cpp").read_text())
    for line in re.findall(lines, (root / f"docs/{page}.md").read_text(), re.M):
        for form in re.findall(r"`([^`]+)`", line):
            if re.search(r"[(=]", form) and not form.startswith("MPI_") and spaceless(form) not in code:
                yield f"{page}.md: not in {name}.cpp: {form}"


def rows_of(page):
    """Returns the names in the first cells of a page's tables, and the second cells."""
    rows = re.findall(r"^\|([^|]*)\|(.*)\|$", page.read_text(), re.M)
    return {name for first, _ in rows for code in re.findall(r"`([^`]+)`", first) for name in re.findall(r"[\w.-]+", code)}, [second for _, second in rows]


def check_calls(root):
    for page, names in {"names_of_pytorch": names_of_others.PYTORCH, "names_of_nccl": names_of_others.NCCL}.items():
        known, second_cells = rows_of(root / f"docs/reference/{page}.md")
        yield from (f"{page}.md has no row for {name}" for name in names if name not in known)
        yield from (f"{page}.md has an empty cell" for cell in second_cells if not cell.strip())
    for folder in ("/usr/local/cuda/include", "/usr/local/include", "/usr/include"):
        header = pathlib.Path(folder) / "nccl.h"
        text = header.read_text() if header.is_file() else ""
        if "#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n" in text:
            different = names_of_others.names_of_nccl(text) ^ set(names_of_others.NCCL)
            yield from (f"names_of_others.py and {header} differ: {name}" for name in sorted(different))


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_links(root):
    for page in pages(root):
        for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists():
                yield f"{page.name}: no such file: {target}"
            elif anchor and anchor not in anchors(file):
                yield f"{page.name}: no such heading: {target}"


def ways(root):
    return sorted((root / "docs").glob("way_of_*.md"))


def source_of(root, name):
    """Returns a file that a page names: a header, or a file of tools/ or tests/."""
    return root / name if name.startswith(("tools/", "tests/")) else root / "include/hvd" / name


def check_headers(root):
    for page in [root / "docs/internals.md", root / "docs/reference/code.md", *ways(root)]:
        for name in re.findall(r"`([\w/*]+(?:/|\.hpp))`", page.read_text()):
            if not name.startswith("include/") and not any((root / "include/hvd").glob(name)):
                yield f"{page.name}: no such header or folder: {name}"


def check_names(root):
    defined = {}

    def has(file, name):
        if file not in defined:
            path = source_of(root, file)
            defined[file] = defined_names(path.read_text()) if path.is_file() else set()
        return name.removeprefix("detail::") in defined[file]

    questions = root / "docs/reference/code.md"
    table = re.search(r"^\| question \| file \| function \|\n\|---\|---\|---\|\n((?:\|.*\n)*)", questions.read_text(), re.M)
    rows = table[1].splitlines() if table else []
    if len(rows) < FEWEST_QUESTIONS:
        yield f"{questions.name}: {len(rows)} questions, and there were {FEWEST_QUESTIONS}"
    for row in rows:
        cells = re.fullmatch(r"\| [^|`]+ \| `([\w/.]+)` \| ((?:`[\w:]+`(?:, )?)+) \|", row)
        if not cells:
            yield f"{questions.name}: this row has no file or no function: {row}"
            continue
        yield from (f"{questions.name}: {cells[1]} does not define {name}" for name in re.findall(r"`([\w:]+)`", cells[2]) if not has(cells[1], name))
    for page in [questions, root / "docs/internals.md", *ways(root)]:
        text = page.read_text()
        files = set(re.findall(r"`([\w/]+\.[hc]pp)`", text))
        for name, file in re.findall(r"`([\w:]+)`\s+\(`([\w/]+\.[hc]pp)`", text):
            if not name.startswith(("hvd::", "std::")) and not has(file, name):
                yield f"{page.name}: {file} does not define {name}"
        for name in re.findall(r"`(\w+::[\w:]+)`", text):
            if not name.startswith(("hvd::", "std::")) and not any(has(file, name) for file in files):
                yield f"{page.name}: no file that it names defines {name}"


def check_rooms(root):
    for name, (page, _) in rooms.TABLES.items():
        text = (root / page).read_text()
        if f"\n<!-- rooms {name} -->\n" not in text:
            yield f"{page}: has no table <!-- rooms {name} -->"
        if rooms.with_tables(page, text) != text:
            yield f"{page}: is not as tools/docs/rooms.py writes it"


def check_surface(root):
    page = (root / "docs/surface.md").read_text()
    if page != surface.page(root):
        yield "docs/surface.md is not as tools/docs/surface.py writes it"
    listed = re.findall(r"^\| `([\w:]+)`", page, re.M)
    yield from (f"docs/surface.md has a type for a member's name: {row}" for row in re.findall(r"^.* `(?:void|bool|int|double)`.*$", page, re.M))
    yield from (f"docs/surface.md has {name} twice" for name in sorted(listed) if listed.count(name) > 1)
    yield from (f"docs/surface.md lacks {name}, of {header}: has it a comment?" for name, header in public_names(root).items() if name not in listed)
    for file in [*pages(root), *(root / "examples").rglob("*.[ch]pp"), *(root / "examples").rglob("*.cu")]:
        for name in re.findall(r"#include <hvd/([^>]+)>", file.read_text()):
            if "/" in name and not name.startswith("interop/"):
                yield f"{file.relative_to(root)} includes hvd/{name}, which is behind a door"


def check_options(root):
    page = (root / "docs/reference/options.md").read_text()
    if page != options.page(root):
        yield "docs/reference/options.md is not as tools/docs/options.py writes it"
    yield from (f"docs/reference/options.md: a member without a comment: {row}" for row in re.findall(r"^.*\|  \|$", page, re.M))
    structs = options.structs(root)
    yield from (f"docs/reference/options.md lacks {name}" for name in public_names(root)
                if re.search(r"_options$|::options$", name) and name not in structs and name not in options.LEFT_OUT)


def check_compile_errors(root):
    page = (root / "docs/reference/compile_errors.md").read_text()
    if page != compile_errors.page(root):
        yield "docs/reference/compile_errors.md is not as tools/docs/compile_errors.py writes it"


def check_commands(root):
    known = subprocess.run([root / "run", "help"], capture_output=True, text=True, check=True).stdout
    commands = set(re.findall(r"^\./run ([\w-]+)", known, re.M))
    for page in pages(root):
        for command in re.findall(r"\./run ([\w-]+)", page.read_text()):
            if command not in commands:
                yield f"{page.name}: ./run help does not know: {command}"


def check_pictures(root):
    images = root / "docs/images"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, images / "draw.py", folder], check=True)
        drawn = {file.name for file in pathlib.Path(folder).iterdir()}
        # Others draw those from their figures: benchmarks/report.py and benchmarks/simulated/scaling.py.
        all_drawn = drawn | {"benchmarks.svg", *(f"scaling_{gigabits}.svg" for gigabits in (10, 25, 100))}
        if all_drawn != {file.name for file in images.glob("*.svg")}:
            yield "docs/images has other pictures than draw.py draws"
        for name in sorted(drawn):
            if not filecmp.cmp(images / name, pathlib.Path(folder) / name, shallow=False):
                yield f"docs/images/{name} is not what draw.py draws"
    shown = {pathlib.Path(target).name for page in pages(root) for target in re.findall(r"\[[^\]]*\]\(([^)]+)\)", page.read_text())}
    for page in ways(root):  # whose names check_names finds in the files
        for name in re.findall(r'font-size="11"[^>]*>([^<]+)<', (images / f"{page.stem}.svg").read_text()):
            if f"`{name}`" not in page.read_text():
                yield f"{page.stem}.svg shows {name}, and {page.name} does not name it"
    yield from (f"no page shows {name}" for name in sorted(all_drawn - shown))
    # matplotlib has drawn this one from the recorded figures; it need not be here.
    page, picture = (root / "docs/benchmarks.md").read_text(), (images / "benchmarks.svg").read_text()
    for row in re.findall(r'^ *(?:SHOWN = \{)?"([^"]+)": "', (root / "benchmarks/report.py").read_text(), re.M):
        values = re.findall(re.escape(row) + r"(?: \((?:near|far|unknown)\))? +(\d+\.\d+) ", page)
        if values and f">{min(values, key=float)}×<" not in picture:
            yield f"docs/images/benchmarks.svg does not show {min(values, key=float)}: {row}"


def names_in(file):
    """Returns the test cases of a doctest file. Adjacent literals are one name."""
    found = re.findall(r"(?:TEST_CASE|SUBCASE|TEST_CASE_TEMPLATE|TEST_CASE_TEMPLATE_DEFINE)\(\s*"
                       r'("(?:[^"\\]|\\.)*"(?:\s*"(?:[^"\\]|\\.)*")*)', file.read_text())
    return {re.sub(r'"\s*"', "", name)[1:-1].replace('\\"', '"') for name in found}


def check_tests(root):
    page = root / "docs/reference/horovod_behaviours.md"
    for line in page.read_text().splitlines():
        for file, names in re.findall(r"`(tests/[\w/]+\.\w+)`((?:,? \"[^\"]+\")*)", line):
            path = root / file
            if not path.is_file():
                yield f"no such file: {file}"
                continue
            if line.startswith("|") and not names and not file.startswith("tests/compile_fail/"):
                yield f"no test is named: {file}"
            known = names_in(path)
            yield from (f"{file} has no test: {name}" for name in re.findall(r'"([^"]+)"', names) if name not in known)
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and not all(cells):
            yield f"a cell is empty: {line}"


def without_comments(code):
    return re.sub(r"//[^\n]*|/\*.*?\*/|\"(?:[^\"\\\n]|\\.)*\"", "", code, flags=re.S)


def functions_of_others(files, pattern):
    return {name for file in files for name in re.findall(pattern, without_comments(file.read_text()), re.M)}


def check_emulation(root):
    page, folder = root / "tests/emulation/README.md", root / "tests/emulation"
    rows = re.findall(r"^\| (`[^|]*) \|(.*)\|$", page.read_text().partition("## Function by function")[2], re.M)
    listed = [name for first, _ in rows for name in re.findall(r"`(\w+)`", first)]
    defined = functions_of_others(folder.glob("*.cpp"), r"^(?:cudaError_t|ncclResult_t|const char\*) ((?:cuda|nccl)[A-Z]\w*)\(")
    headers = [*(root / "include").rglob("*.hpp"), *(root / "include").rglob("*.cuh")]
    called = functions_of_others(headers, r"\b((?:cuda|nccl)[A-Z]\w*)\(")
    yield from (f"{page.name} has no row for {name}" for name in sorted((defined | called) - set(listed)))
    yield from (f"{page.name} has {name}, which neither the emulation defines nor hvd calls" for name in sorted(set(listed) - defined - called))
    yield from (f"{page.name} has {name} twice" for name in sorted(set(listed)) if listed.count(name) > 1)
    yield from (f"{page.name}: an empty cell beside {first}" for first, cells in rows if len(cells.split("|")) != 4 or not all(map(str.strip, cells.split("|"))))


def check_snippets(root):
    for header in sorted((root / "include").rglob("*.hpp")):
        for file, name in re.findall(r"@snippet (\S+) (.+)", header.read_text()):
            if not (root / file).is_file() or region(root, file, name) is None:
                yield f"{header.name}: {file} has no snippet [{name}]"


FIGURE = re.compile(r"\d[\d.,]*\s*(?:%|×|times|s\b|seconds|minutes|GB/s|MB/s|images/s)|\b(?:half|third|twice)\b")
DATE = re.compile(r"\b\d{1,2} (?:January|February|March|April|May|June|July|August|September|October|November|December) 20\d\d\b|\b20\d\d-\d\d-\d\d\b")
COMMAND = re.compile(r"`(?:\./run|python3|g\+\+|mpicxx|mpiexec|meson|ninja|hvdrun|cat) [^`]+`")


def paragraphs(text):
    """Yields what is read at once: a paragraph with the output or the picture beside it, or an item of a list. Commands to type are none."""
    text = re.sub(r"^```(?!text)\w+\n.*?^```$", "", text, flags=re.M | re.S)
    text = re.sub(r"\n+(```text\n)", r"\n\1", re.sub(r"^(!\[.*\))\n\n", r"\1\n", text, flags=re.M))
    yield from re.split(r"\n\n+|\n(?=- )", text)


def rows_below(text, heading):
    """Returns the cells of the rows of the first table below a heading."""
    table = re.search(r"^\|.*\n\|[-|]+\n((?:\|.*\n)*)", text.partition(heading)[2], re.M)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table[1].splitlines()] if table else []


def tests_of(build_root):
    """Returns the names and suites of a build's tests."""
    tests = json.loads((pathlib.Path(build_root) / "meson-info/intro-tests.json").read_text())
    return {name for test in tests for name in [test["name"], *(suite.partition(":")[2] for suite in test["suite"])]}


def check_claims(root, build_root=None):
    comparison = (root / "docs/comparison.md").read_text()
    for page in (root / "README.md", root / "docs/comparison.md"):
        for said in paragraphs(page.read_text()):
            if not said.startswith("|") and FIGURE.search(said) and not (DATE.search(said) and COMMAND.search(said)):
                yield f"{page.name}: a figure without {'a command' if DATE.search(said) else 'a date'}: {said.strip()[:120]}"
    rows, behind = rows_below(comparison, "# Comparison"), {row[0]: row for row in rows_below(comparison, "## What stands behind it")}
    yield from (f"comparison.md: nothing stands behind the row: {row[0]}" for row in rows if not COMMAND.search("|".join(behind.get(row[0], []))))
    yield from (f"README.md: docs/comparison.md has no row: {row[0]}" for row in rows_below((root / "README.md").read_text(), "## Comparison")
                if row[0] not in behind)
    if not DATE.search(comparison.partition("## What stands behind it")[2]):
        yield "comparison.md: the tests have no date"
    if build_root:
        known = tests_of(build_root)
        for words in re.findall(r"`\./run test ([^`]+)`", comparison):
            yield from (f"comparison.md: no test is named {word}" for word in words.split()
                        if not word.startswith("--") and not fnmatch.filter(known, word))


def run(command, **keywords):
    print("$", *command, flush=True)
    result = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            timeout=240, **keywords)
    print(result.stdout, flush=True)
    return result


def check_programs(root, build_root, like, mpicxx=None, *mpiexec):
    sys.path.insert(0, str(root / "tests/support"))
    from compiler import Compiler
    compiler = Compiler(build_root, like)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "hvd").symlink_to(root)
        for page in pages(root):
            for number, block in enumerate(filter(is_program, blocks(page, "cpp"))):
                with_mpi = "mpi_environment" in block["text"]
                if with_mpi and not mpicxx:
                    print(f"{page.name}: program {number} needs MPI")
                    continue
                (folder / "train.cpp").write_text(block["text"])
                commands = [[*compiler.command, folder / "train.cpp", "-o", folder / "train", "-pthread"], [folder / "train"]]
                if with_mpi:
                    # The page's command runs with this build's compiler and launcher.
                    lines = "\n".join(block["text"] for block in blocks(page, "sh"))
                    commands = [re.search(rf"^{word} .*train.*$", lines, re.M)[0].split() for word in ("mpicxx", "mpiexec")]
                    commands[0][:1], commands[1][:1] = [mpicxx], mpiexec
                for command in commands:
                    result = run(command, cwd=folder, env=dict(os.environ, OMPI_CXX=" ".join(compiler.command[:1])))
                    if result.returncode != 0:
                        yield f"{page.name}: program {number}: failed: {command[0]}"
                for said in re.findall(r"//\s*(\d+ ranks: .*)$", block["text"], re.M):
                    if said not in result.stdout:
                        yield f"{page.name}: program {number} does not print: {said}"
        yield from check_trainer_in_c(root, folder, compiler)


def check_trainer_in_c(root, folder, compiler):
    """The trainer of docs/guide/from_c.md, on two ranks."""
    source = root / "tests/docs/c_trainer"
    if run(["cc", "-std=c11", "-c", source / "train.c", "-o", folder / "c.o"]).returncode != 0 or run(
            [*compiler.command, source / "data_parallel.cpp", folder / "c.o", "-o", folder / "c_trainer", "-pthread"]).returncode != 0:
        yield "the trainer in C does not compile"
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    job = dict(os.environ, HVD_SIZE="2", HVD_RENDEZVOUS=place, HVD_SECRET="7" * 64)
    ranks = [subprocess.Popen([folder / "c_trainer"], env=job | {"HVD_RANK": rank}, stdout=subprocess.PIPE, text=True) for rank in "01"]
    said = [rank.communicate(timeout=120)[0] for rank in ranks]
    if said != ["y = 1.00 + 3.00 x\n", ""] or any(rank.returncode for rank in ranks):
        yield f"the trainer in C printed {said} and returned {[rank.returncode for rank in ranks]}"


def check_site(root):
    """Builds the site as ./run docs does."""
    import moved
    import site_pages
    if not shutil.which("doxygen") or not site_pages.LUNR.is_file():
        print("doxygen or libjs-lunr is not installed; ./run docs installs them")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        if run([sys.executable, root / "tools/docs/site_pages.py", name, root]).returncode != 0:
            yield "doxygen failed or warned"
            return
        site = pathlib.Path(name) / "html"
        data = json.loads((site / "search_data.js").read_text().partition(" = ")[2].rstrip(";\n"))
        found = {f"{scope}::{word}" for word, scope, address in data["names"] if (site / address.partition("#")[0]).is_file()}
        names = public_names(root)
        print(f"{len(names)} public names, {len(found)} in the search, {len(data['sections'])} sections")
        yield from (f"the search has no {name}, of {header}" for name, header in names.items() if name not in found)
        version = re.search(r'HVD_VERSION_STRING "(.*)"', (root / "include/hvd/version.hpp").read_text())[1]
        if not re.search(rf'id="projectnumber">(&#160;|\s)*{re.escape(version)}<', (site / "index.html").read_text()):
            yield f"the site does not show version {version}"
        yield from (f"the old address of {new} leads nowhere" for old, new in moved.PAGES.items()
                    if f"{site_pages.identifier(root / new)}.html" not in (site / f"{site_pages.identifier(root / old)}.html").read_text())
        for page in site.glob("*.html"):
            if not page.name.endswith("_source.html") and re.search(r'class="fragment".*<a class="code[^>]*>world</a>[(.]', page.read_text()):
                yield f"{page.name}: the variable world of an example leads to hvd::world()"


def check_errors(root, program, backend, *mpiexec):
    printed = {}
    for block in blocks(root / "docs/reference/errors.md", "text"):
        settings, scenario = re.fullmatch(r"errors (.*): (.*)", block["comment"]).groups()
        words = settings.split()
        variables = dict(word.split("=") for word in words if "=" in word)
        if backend not in words:
            continue
        key = (scenario, *variables.items())
        if key not in printed:
            launcher = [*mpiexec, "-n", "2"] if mpiexec else []
            said = run([*launcher, program, scenario], env=dict(os.environ, **variables)).stdout
            # Where a header lies is told in full.
            printed[key] = re.sub(r"\(\S*\.hpp:\d+\)", "(…)", said).splitlines()
        for line in block["text"].splitlines():
            if line not in printed[key]:
                yield f"{backend}: {scenario}: not printed: {line}"
    if not printed:
        yield f"docs/reference/errors.md has nothing for {backend}"


if __name__ == "__main__":
    check, root, *arguments = sys.argv[1:]
    found = list(globals()["check_" + check](pathlib.Path(root).resolve(), *arguments))
    print(*found, sep="\n")
    sys.exit(1 if found else 0)
