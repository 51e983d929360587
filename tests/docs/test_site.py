"""The documentation site builds without a warning, has no dead link, and loads nothing from the internet."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """The links, anchors and loaded files of an HTML page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if anchor := values.get("id") or values.get("name"):
            self.anchors.add(anchor)
        if tag == "a" and (target := values.get("href")) is not None:
            self.links.append(target)
        if tag in LOADED and (target := values.get(LOADED[tag])):
            self.loads.append(target)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",  # not quiet: then MkDocs counts no warnings
        "-f",
        str(ROOT / "mkdocs.yml"),
        "-d",
        str(folder),
    ]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path: Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}


def test_no_link_of_the_site_is_dead(pages: dict[Path, Page]) -> None:
    dead = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are relative to the root of a server
            continue
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                dead.append(f"{path.name}: {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                dead.append(f"{path.name}: {link} (anchor)")
    assert dead == []


def test_the_site_loads_nothing_from_the_internet(pages: dict[Path, Page]) -> None:
    outside = {load for page in pages.values() for load in page.loads if urlsplit(load).netloc}
    assert outside == set()


def test_the_site_has_no_diagram_that_needs_mermaid(pages: dict[Path, Page]) -> None:
    """Material would load Mermaid from unpkg.com for such a page."""
    assert not [path for path in pages if 'class="mermaid"' in path.read_text(encoding="utf-8")]


def test_every_method_has_a_page(pages: dict[Path, Page]) -> None:
    from polyfed.catalogue import methods

    written = {path.stem for path in pages if path.parent.name == "methods"}
    assert methods().keys() <= written


def test_every_method_page_has_all_sections() -> None:
    markers = {f"<!-- {name} -->" for name in ("summary", "algorithm", "messages", "options", "measured")}
    headings = {"How it works", "Communication", "Options", "When to use it", "When not to use it", "Results"}
    missing = {}
    for path in (ROOT / "docs" / "methods").glob("*.md"):
        lines = path.read_text(encoding="utf-8").splitlines()
        wanted = markers | {f"## {heading}" for heading in headings}
        if path.stem != "index" and not wanted <= set(lines):
            missing[path.stem] = sorted(wanted - set(lines))
    assert missing == {}


def test_method_pages_show_the_options_of_the_code(pages: dict[Path, Page]) -> None:
    from polyfed.catalogue import methods

    texts = {path.stem: path.read_text(encoding="utf-8") for path in pages if path.parent.name == "methods"}
    missing = [
        f"{info.name}: {option.name}"
        for info in methods().values()
        for option in info.options
        if f"<code>{option.name}</code>" not in texts[info.name]
    ]
    assert missing == []


def test_the_page_on_figures_lists_all_kinds() -> None:
    from polyfed.report.figure_kinds import KINDS

    text = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    assert [kind for kind in KINDS if f"| `{kind}` |" not in text] == []


def test_links_between_files_of_the_repository_are_not_dead() -> None:
    """README and docs are also read without the site."""
    dead = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            target = unquote(urlsplit(link).path)
            if not urlsplit(link).scheme and target and not (page.parent / target).exists():
                dead.append(f"{page.relative_to(ROOT)}: {link}")
    assert dead == []
