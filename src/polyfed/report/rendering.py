"""From pictures to files and to SVG inside a page. The only place that sets how matplotlib draws."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from polyfed.errors import InputError, StateError
from polyfed.report.figure_spec import COLORS, Picture
from polyfed.runs.atomic_files import write_atomically

SUFFIXES = (".png", ".svg", ".pdf")
SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
# stand-ins that a page replaces by its own colours, so that a figure follows light and dark
TEXT, GRID = "#010203", "#040506"
_STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "axes.linewidth": 0.7,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "hatch.linewidth": 0.6,
    "image.cmap": "cividis",  # grows lighter evenly, so that it can be read in grey
    "text.parse_math": False,  # a name with a dollar is a name
    "axes.unicode_minus": True,
    "pdf.fonttype": 42,  # TrueType fonts inside the file, as journals ask
    "svg.hashsalt": "polyfed",  # equal figures are equal files
    "savefig.dpi": 300,
}
_IN_PAGE = {
    "svg.fonttype": "none",  # text stays text: it can be searched, copied and read aloud
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "axes.edgecolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "grid.color": GRID,
}
_IN_FILE = {"svg.fonttype": "path", "grid.color": "#d9d9d9"}  # a file looks the same without our fonts


@contextmanager
def _styled(more: dict[str, Any]) -> Iterator[None]:
    import matplotlib

    settings: Any = {**_STYLE, **more}
    with matplotlib.rc_context(rc=settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as for letters of a name that the font does not have
        yield


def write(picture: Picture, path: Path, *, width: float | None = None, height: float | None = None) -> None:
    """A picture as a file; its suffix says in which format, .csv meaning the numbers."""
    from matplotlib.figure import Figure

    size = (width or picture.size[0], height or picture.size[1])
    try:
        if path.suffix.lower() == ".csv":
            write_atomically(path, numbers(picture).encode(), durable=False)
            return
        with _styled(_IN_FILE):
            figure = Figure(figsize=size, layout="constrained")
            picture.draw(figure)
            dates = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
            drawn = io.BytesIO()
            figure.savefig(
                drawn, format=path.suffix[1:].lower(), facecolor="white", metadata=dates[path.suffix.lower()]
            )
        write_atomically(path, drawn.getvalue(), durable=False)
    except (OSError, StateError) as error:
        raise InputError(str(error).replace("could not be", "cannot be")) from None
    except _UNDRAWABLE as error:
        raise _refusal(picture, error) from None


# what matplotlib answers to numbers that no axis can hold
_UNDRAWABLE = (ValueError, TypeError, OverflowError, ArithmeticError, MemoryError)


def _refusal(picture: Picture, error: Exception) -> InputError:
    return InputError(f"'{picture.title}' cannot be drawn from these numbers: {type(error).__name__}: {error}")


def numbers(picture: Picture) -> str:
    """What a picture shows, as csv."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(picture.columns)
    writer.writerows(["" if cell is None else cell for cell in row] for row in picture.rows)
    return text.getvalue()


def inline(picture: Picture, ident: str) -> str:
    """A picture as an SVG element of a page: scalable, in the page's colours, named for those who cannot see it."""
    from matplotlib.figure import Figure

    drawn = io.StringIO()
    try:
        with _styled(_IN_PAGE):
            figure = Figure(figsize=picture.size, layout="constrained")
            picture.draw(figure)
            figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    except _UNDRAWABLE as error:
        raise _refusal(picture, error) from None
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    root = ElementTree.fromstring(drawn.getvalue())
    _own_idents(root, ident)
    for element in [e for e in root if e.tag.endswith("metadata")]:
        root.remove(element)
    for style in root.iter(f"{{{SVG}}}style"):
        style.text = ""  # the page has it
    root.attrib.pop("width", None)
    root.attrib.pop("height", None)
    root.attrib.pop("version", None)
    root.set("role", "img")
    root.set("aria-labelledby", f"{ident}-title")
    title = ElementTree.Element(f"{{{SVG}}}title", {"id": f"{ident}-title"})
    title.text = f"{picture.title}. {picture.words}"
    root.insert(0, title)
    text = ElementTree.tostring(root, encoding="unicode")
    text = text.replace(TEXT, "currentColor").replace(GRID, "var(--grid)")
    for at, color in enumerate(COLORS):
        text = text.replace(color, f"var(--c{at})")
    return text


def _own_idents(root: ElementTree.Element, ident: str) -> None:
    """Idents are unique in a page: the few that something refers to get a prefix, the others go."""
    link = f"{{{XLINK}}}href"
    used: set[str] = set()
    for element in root.iter():
        for key, value in element.attrib.items():
            if key == link and value.startswith("#"):
                used.add(value[1:])
                element.set(key, f"#{ident}-{value[1:]}")
            elif "url(#" in value:
                name = value.partition("url(#")[2].partition(")")[0]
                used.add(name)
                element.set(key, value.replace(f"url(#{name})", f"url(#{ident}-{name})"))
    for element in root.iter():
        name = element.attrib.pop("id", "")
        if name in used:
            element.set("id", f"{ident}-{name}")
