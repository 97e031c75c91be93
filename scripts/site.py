#!/usr/bin/env python3
"""Builds the site of the documentation: build/site/html/index.html.

  site.py                   builds the site, and first installs scripts/site_requirements.txt in
  build/site/venv site.py --pages FOLDER    only writes the pages for the generator, and needs no package

README.md is the first page. A link to a source file leads to a copy of it, and a link whose text is a page's
name gets the page's title. A link that leads nowhere ends the build.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[1]
SITE = ROOT / "build" / "site"
PAGES = {"README.md": "readme.md", "docs/README.md": "docs.md", "CONTRIBUTING.md": "CONTRIBUTING.md",
         "CHANGELOG.md": "CHANGELOG.md"}  # others of docs/ keep their names below it
CONF = """
project = "Shardwise"
html_title = "Shardwise"
extensions = ["myst_parser"]
html_theme = "furo"
html_show_sphinx = False
html_copy_source = False
myst_disable_syntax = ["myst_role", "myst_target", "myst_line_comment", "myst_block_break", "footnote_ref"]
myst_heading_anchors = 4
highlight_language = "none"
smartquotes = False
suppress_warnings = ["misc.highlighting_failure", "myst.header"]
html_static_path = ["static"]
html_css_files = ["site.css"]
"""
CSS = """
.content { width: 54em; }
.highlight pre { font-size: 0.75rem; }
table.docutils { display: block; overflow-x: auto; font-size: 0.875em; }
article img { background: white; max-width: 100%; }
@media (max-width: 46em) { h1 { font-size: 1.8em; } h2 { font-size: 1.4em; } h3 { font-size: 1.15em; } }
"""


def staged(path):
    """The place in the site of a file of the repository."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/").replace("README.md", "index.md")
    return path if path.endswith((".png", ".svg")) else f"source/{path}.txt"


LINK = r"(\[[^\]\[]*)?\]\(([^)\s]+)\)"  # code in its text is cut off


def with_links(page, text, wanted):
    """The page with its links as the site has them. Adds to `wanted` the files that they lead to."""
    here = pathlib.PurePosixPath(staged(page)).parent

    def link(match):
        text, (target, sign, anchor) = match[1] or "", match[2].partition("#")
        if not target or re.match(r"\w+:", target):
            return match[0]
        path = (ROOT / page).parent.joinpath(target).resolve()
        path = path / "README.md" if (path / "README.md").exists() else path
        if not path.is_file():
            sys.exit(f"site.py: {page} links to {target}, which is not there")
        name = path.relative_to(ROOT).as_posix()
        wanted.add(name)
        if text and not anchor and target.endswith(text[1:]) and (heading := title(path)):
            text = f"[{heading}"
        return f"{text}]({'../' * len(here.parts)}{staged(name)}{sign}{anchor})"

    parts = re.split(r"(?ms)(^```.*?^```$|`[^`\n]*`)", text)
    return "".join(part if number % 2 else re.sub(LINK, link, part) for number, part in enumerate(parts))


def title(path):
    found = re.search(r"(?m)^# (.*)$", path.read_text()) if path.suffix == ".md" else None
    return found[1] if found else ""


def index():
    """The first page: README, and the others by the headings and tables of docs/README.md."""
    sections = re.split(r"(?m)^## (.*)$", (ROOT / "docs" / "README.md").read_text())
    lists = [("", ["docs", "python", "install"])]
    for title, text in zip(sections[1::2], sections[2::2]):
        names = dict.fromkeys(re.findall(r"\]\(([\w./]+)\.md", text))
        lists.append((title, [name for name in names if not name.startswith("reference/")]))
    modules = sorted(path.stem for path in (ROOT / "docs" / "reference").glob("shardwise*.md"))
    lists.append(("Python, by module", ["reference/index", *(f"reference/{name}" for name in modules)]))
    lists.append(("Project", ["CONTRIBUTING", "CHANGELOG"]))
    lines = [".. include:: readme.md\n   :parser: myst_parser.sphinx_\n"]
    for title, names in lists:
        options = ["   :hidden:", "   :titlesonly:", *([f"   :caption: {title}"] if title else [])]
        lines += [".. toctree::", *options, "", *(f"   {name}" for name in names), ""]
    return "\n".join(lines)


def write_pages(folder):
    shutil.rmtree(folder, ignore_errors=True)
    docs = (path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    done, wanted = set(), {*PAGES, *docs}
    while wanted - done:
        for name in sorted(wanted - done):
            target = folder / staged(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            done.add(name)
            if target.suffix == ".md":
                target.write_text(with_links(name, (ROOT / name).read_text(), wanted))
            else:
                shutil.copy(ROOT / name, target)
    (folder / "index.rst").write_text(index())
    (folder / "conf.py").write_text(CONF)
    (folder / "static").mkdir()
    (folder / "static" / "site.css").write_text(CSS)
    return len(done)


def broken_links(html):
    """Links within the built site that lead to no file, or to no place in it."""
    places = {
        page.resolve(): set(re.findall(r'\bid="([^"]+)"', page.read_text())) for page in html.rglob("*.html")
    }
    for page in sorted(places):
        for link in re.findall(r'(?:href|src)="([^"#?]*)(?:\?[^"#]*)?(?:#([^"]*))?"', page.read_text()):
            file, anchor = map(urllib.parse.unquote, link)
            target = page.parent.joinpath(file).resolve() if file else page
            if re.match(r"\w+:|//", file) or (
                target.exists() and (not anchor or anchor in places.get(target, {anchor}))
            ):
                continue
            yield f"{page.relative_to(html.resolve())}: {file}#{anchor}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", metavar="FOLDER", type=pathlib.Path,
                        help="only writes the pages for the generator there, and needs no package")
    if folder := parser.parse_args().pages:
        write_pages(folder)
        return
    pages, html, venv = SITE / "pages", SITE / "html", SITE / "venv"
    number = write_pages(pages)
    requirements = ROOT / "scripts" / "site_requirements.txt"
    stamp = venv / "requirements.txt"
    if not stamp.exists() or stamp.read_text() != requirements.read_text():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin" / "pip", "install", "--quiet", "-r", requirements], check=True)
        shutil.copy(requirements, stamp)
    shutil.rmtree(html, ignore_errors=True)
    build = [venv / "bin" / "sphinx-build", "-q", "-W", "--keep-going", "-d", SITE / "cache"]
    if subprocess.run([*build, pages, html]).returncode:
        sys.exit("site.py: Sphinx warned of a page")
    if broken := list(broken_links(html)):
        sys.exit("\n".join(["site.py: links that lead nowhere:", *broken]))
    print(f"{html / 'index.html'}: {number} pages and files")


if __name__ == "__main__":
    main()
