"""MkDocs hook of the documentation site: pages and diagrams that are made while the site is built.

- `CONTRIBUTING.md` and `CHANGELOG.md` of the repository become pages.
- Notebooks in `docs/tutorials` become pages with their saved outputs.
- Method pages get the sections that `method_pages.py` makes from the code and the leaderboard.
- Links from a page to files outside `docs/` point at the repository.
- Mermaid flowcharts become SVG, because Material would load Mermaid from the internet.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from pathlib import Path
from typing import Any

import method_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)]*)?(\))")
MERMAID = re.compile(r"^```mermaid\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files of `docs/`."""
    for source, target in ROOT_PAGES.items():
        content = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, target, content=content))
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            files.remove(file)
            path = Path(config.docs_dir, file.src_uri)
            content, images = notebook_page(json.loads(path.read_text(encoding="utf-8")), path.stem)
            files.append(File.generated(config, file.src_uri.removesuffix(".ipynb") + ".md", content=content))
            for name, data in images.items():
                uri = posixpath.join(posixpath.dirname(file.src_uri), name)
                files.append(File.generated(config, uri, content=data))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the sections of method pages, and rewrite links and diagrams."""
    if page.file.src_uri.startswith("methods/"):
        markdown = method_pages.fill(markdown, Path(page.file.src_uri).stem)
    origin = {target: source for source, target in ROOT_PAGES.items()}.get(page.file.src_uri)
    folder = "" if origin else posixpath.dirname("docs/" + page.file.src_uri)

    def rewrite(match: re.Match[str]) -> str:
        start, target, anchor, end = match.groups()
        if "://" in target or target.startswith("mailto:"):
            return match.group(0)
        path = posixpath.normpath(posixpath.join(folder, target))
        if path in ROOT_PAGES:
            inside = ROOT_PAGES[path]
        elif path.startswith("docs/"):
            inside = path.removeprefix("docs/")
            inside = inside.removesuffix(".ipynb") + ".md" if inside.endswith(".ipynb") else inside
            if (ROOT / path).is_dir():
                inside = posixpath.join(inside, "index.md")
        elif (ROOT / path).exists():
            kind = "tree" if (ROOT / path).is_dir() else "blob"
            return f"{start}{config.extra['repository']}/{kind}/main/{path}{anchor or ''}{end}"
        else:
            return match.group(0)  # MkDocs reports it
        relative = posixpath.relpath(inside, posixpath.dirname(page.file.src_uri) or ".")
        return f"{start}{relative}{anchor or ''}{end}"

    return MERMAID.sub(lambda match: flowchart(match.group(1)), LINK.sub(rewrite, markdown))


# notebooks


def notebook_page(notebook: dict[str, Any], stem: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, with the images of its outputs by file name."""
    parts: list[str] = []
    images: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code" and source.strip():
            parts.append(fenced(source, "python"))
            for output in cell.get("outputs", []):
                data = output.get("data", {})
                if "image/png" in data:
                    name = f"{stem}-{len(images) + 1}.png"
                    images[name] = base64.b64decode("".join(data["image/png"]))
                    parts.append(f"![Output of the cell above]({name})")
                elif "text/html" in data:
                    parts.append("<div>\n" + "".join(data["text/html"]).strip() + "\n</div>")
                elif text := "".join(data.get("text/plain", output.get("text", ""))).strip("\n"):
                    parts.append(fenced(text, "text"))
    return "\n\n".join(parts) + "\n", images


def fenced(text: str, language: str) -> str:
    """Return a code block, fenced with more backticks than the text has in a row."""
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


# flowcharts: boxes in rows, each below everything that points at it

EDGE = re.compile(r"^\s*(\w+)\s*-->\s*(\w+)\s*$")
BOX_HEIGHT, ROW_HEIGHT, CHARACTER, GAP = 26, 62, 7.4, 22


def flowchart(text: str) -> str:
    """Return the SVG of a Mermaid flowchart that has only lines of the form `a --> b`."""
    edges = []
    for line in text.strip().splitlines()[1:]:
        match = EDGE.match(line)
        if match is None:
            raise ValueError(f"scripts/docs_site.py draws lines of the form 'a --> b', not '{line.strip()}'")
        edges.append((match.group(1), match.group(2)))
    rows = arranged(edges)
    width_of = {name: CHARACTER * len(name) + 20 for row in rows for name in row}
    total = max(sum(width_of[name] + GAP for name in row) for row in rows)
    centre: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        x = (total - sum(width_of[name] + GAP for name in row) + GAP) / 2
        for name in row:
            centre[name] = (x + width_of[name] / 2, number * ROW_HEIGHT + BOX_HEIGHT / 2 + 1)
            x += width_of[name] + GAP
    lines = []
    for upper, lower in edges:
        (x1, y1), (x2, y2) = centre[upper], centre[lower]
        y1, y2 = y1 + BOX_HEIGHT / 2, y2 - BOX_HEIGHT / 2 - 5
        middle = (y1 + y2) / 2
        curve = f"M{x1:.0f},{y1:.0f} C{x1:.0f},{middle:.0f} {x2:.0f},{middle:.0f} {x2:.0f},{y2:.0f}"
        lines.append(f'<path d="{curve}" marker-end="url(#arrow)"/>')
    boxes = [
        f'<rect x="{x - width_of[name] / 2:.0f}" y="{y - BOX_HEIGHT / 2:.0f}" rx="4" width="{width_of[name]:.0f}" '
        f'height="{BOX_HEIGHT}"/><text x="{x:.0f}" y="{y:.0f}">{name}</text>'
        for name, (x, y) in centre.items()
    ]
    arrow = (
        '<marker id="arrow" viewBox="0 0 6 6" refX="1" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0,0 L6,3 L0,6 z"/></marker>'
    )
    size = f"{total:.0f} {(len(rows) - 1) * ROW_HEIGHT + BOX_HEIGHT + 2}"
    width, height = size.split()
    label = "Diagram: " + ", ".join(f"{upper} to {lower}" for upper, lower in edges)
    return (
        f'<svg class="flowchart" role="img" aria-label="{label}" viewBox="0 0 {size}" width="{width}" height="{height}">'
        f"<defs>{arrow}</defs>{''.join(lines)}{''.join(boxes)}</svg>\n"
    )


def arranged(edges: list[tuple[str, str]]) -> list[list[str]]:
    """Return the boxes row by row, with few crossings: each box near the mean place of its neighbours above."""
    names = list(dict.fromkeys(name for edge in edges for name in edge))
    above = {name: [upper for upper, lower in edges if lower == name] for name in names}
    below = {name: [lower for upper, lower in edges if upper == name] for name in names}

    def depth(name: str) -> int:
        return max((1 + depth(upper) for upper in above[name]), default=0)

    levels = {name: depth(name) for name in names}
    for name in names:  # a box that nothing points at goes right above its highest neighbour
        if not above[name]:
            levels[name] = min(levels[lower] for lower in below[name]) - 1
    rows: list[list[str]] = [[] for _ in range(max(levels.values()) + 1)]
    for name in names:
        rows[levels[name]].append(name)
    for sweep in range(8):
        neighbours = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            place = {name: (index + 0.5) / len(line) for line in rows for index, name in enumerate(line)}
            near = {
                name: sum(place[other] for other in neighbours[name]) / len(neighbours[name])
                if neighbours[name]
                else place[name]
                for name in row
            }
            row.sort(key=near.__getitem__)
    return rows
