"""Render figures with matplotlib: to files, and to SVG inside a page. All matplotlib settings are here."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from polyfed.errors import InputError, StateError
from polyfed.report.figure_spec import FigureSpec
from polyfed.report.styles import NEUTRAL, page_colours
from polyfed.runs.atomic_files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

SUFFIXES = (".png", ".svg", ".pdf")
SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
# placeholders that a page replaces by its own colours, so that figures follow light and dark mode
TEXT, GRID = "#010203", "#040506"
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
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
    "axes.edgecolor": NEUTRAL,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "hatch.linewidth": 0.6,
    "axes.titlelocation": "left",
    "axes.titlepad": 6,
    "axes.labelpad": 5,
    "text.parse_math": False,  # names may contain a dollar sign
    "axes.unicode_minus": True,
    "pdf.fonttype": 42,  # embed TrueType fonts, as journals require
    "svg.hashsalt": "polyfed",  # equal figures give equal files
    "savefig.dpi": 300,
}
IN_PAGE = {
    "svg.fonttype": "none",  # text stays text: searchable and accessible to screen readers
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "grid.color": GRID,
}
IN_FILE = {"svg.fonttype": "path", "grid.color": "#d9d9d9"}  # a file looks the same on machines without the fonts


@contextmanager
def styled(more: dict[str, Any]) -> Iterator[None]:
    """Set the style of figures, and that of pages (`IN_PAGE`) or files (`IN_FILE`)."""
    import matplotlib

    settings: Any = {**_STYLE, **more}
    with matplotlib.rc_context(rc=settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for example about glyphs that the font lacks
        yield


def draw(spec: FigureSpec, size: tuple[float, float]) -> Figure:
    """Draw a figure of a size in inches, in the current style."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    spec.draw(figure)
    return figure


def save_figure(spec: FigureSpec, path: Path, *, width: float | None = None, height: float | None = None) -> None:
    """Write a figure to a file. The suffix selects the format; .csv writes the data."""
    size = (width or spec.size[0], height or spec.size[1])
    try:
        if path.suffix.lower() == ".csv":
            write_atomically(path, to_csv(spec).encode(), durable=False)
            return
        with styled(IN_FILE):
            figure = draw(spec, size)
            dates = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
            buffer = io.BytesIO()
            figure.savefig(
                buffer, format=path.suffix[1:].lower(), facecolor="white", metadata=dates[path.suffix.lower()]
            )
        write_atomically(path, buffer.getvalue(), durable=False)
    except (OSError, StateError) as error:
        raise InputError(str(error).replace("could not be", "cannot be")) from None
    except _UNDRAWABLE as error:
        raise _undrawable(spec, error) from None


# errors of matplotlib for values that no axis can show
_UNDRAWABLE = (ValueError, TypeError, OverflowError, ArithmeticError, MemoryError)


def _undrawable(spec: FigureSpec, error: Exception) -> InputError:
    return InputError(f"'{spec.title}' cannot be drawn from these values: {type(error).__name__}: {error}")


def to_csv(spec: FigureSpec) -> str:
    """Return the data of a figure as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(spec.columns)
    writer.writerows(["" if cell is None else cell for cell in row] for row in spec.rows)
    return text.getvalue()


def inline_svg(spec: FigureSpec, prefix: str) -> str:
    """Return a figure as an SVG element of a page, in the colours of the page, with a title for screen readers."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    try:
        with styled(IN_PAGE):
            figure = draw(spec, spec.size)
            for patch in _patches(figure):
                patch.set_hatch("")  # hatches are for grey print
            for background in (figure.patch, *(axes.patch for axes in figure.axes)):
                background.set_facecolor("none")
            canvas: Any = FigureCanvasSVG(figure)
            canvas.print_svg(buffer, metadata={"Date": None})  # `savefig` would draw it twice
    except _UNDRAWABLE as error:
        raise _undrawable(spec, error) from None
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    root = ElementTree.fromstring(buffer.getvalue())
    _prefix_ids(root, prefix)
    for element in [e for e in root if e.tag.endswith("metadata")]:
        root.remove(element)
    for style in root.iter(f"{{{SVG}}}style"):
        style.text = ""  # the page has its own
    root.attrib.pop("width", None)
    root.attrib.pop("height", None)
    root.attrib.pop("version", None)
    root.set("role", "img")
    root.set("aria-labelledby", f"{prefix}-title")
    title = ElementTree.Element(f"{{{SVG}}}title", {"id": f"{prefix}-title"})
    title.text = f"{spec.title}. {spec.caption}"
    root.insert(0, title)
    text = ElementTree.tostring(root, encoding="unicode")
    text = text.replace(TEXT, "currentColor").replace(GRID, "var(--grid)")
    variables = {light: f"var({name})" for name, light, _ in reversed(page_colours())}
    return _COLOUR.sub(lambda match: variables.get(match[0], match[0]), text)


def _patches(figure: Figure) -> Iterator[Patch]:
    """Yield the bars, areas and legend entries of a figure."""
    legends = [*figure.legends]
    for axes in figure.axes:
        yield from axes.patches
        legends += [axes.legend_] if axes.legend_ is not None else []
    for legend in legends:
        yield from legend.get_patches()


def _prefix_ids(root: ElementTree.Element, prefix: str) -> None:
    """Make ids unique in a page: prefix the ids that are referenced, and remove the others."""
    link = f"{{{XLINK}}}href"
    used: set[str] = set()
    for element in root.iter():
        for key, value in element.attrib.items():
            if key == link and value.startswith("#"):
                used.add(value[1:])
                element.set(key, f"#{prefix}-{value[1:]}")
            elif "url(#" in value:
                name = value.partition("url(#")[2].partition(")")[0]
                used.add(name)
                element.set(key, value.replace(f"url(#{name})", f"url(#{prefix}-{name})"))
    for element in root.iter():
        name = element.attrib.pop("id", "")
        if name in used:
            element.set("id", f"{prefix}-{name}")
