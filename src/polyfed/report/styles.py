"""Colours, dashes and markers of figures. A method has the same style in every figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polyfed.comparison.palette import DARK, LIGHT, method_style

if TYPE_CHECKING:
    from matplotlib.colors import LinearSegmentedColormap

Dashes = str | tuple[int, tuple[float, ...]]

DASHES: tuple[Dashes, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1.2, 1.6)),
    (0, (6, 2, 1.2, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "h", "*", "<", ">")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "||||", "oooo", "----")  # in files only, for grey print

# Shades tell the settings of one method apart: how far a colour is mixed with white (positive) or black (negative).
SHADES = (0.0, 0.45, -0.4)
NEUTRAL = "#808080"  # readable on light and dark backgrounds
HIGHER, LOWER = "#2f81d6", "#d9722b"  # of heat maps, drawn with opacity on light and dark backgrounds


@dataclass(frozen=True)
class Style:
    """How a line, point or bar is drawn: by colour, and for grey print by dashes, marker and hatch."""

    color: str
    dashes: Dashes
    marker: str
    hatch: str = ""


def style_of_method(method: str, variant: int = 0) -> Style:
    """Return the style of a method. Variants, which are further settings of it, share its colour in other shades."""
    colour, dashes = method_style(method)
    return Style(
        shaded(LIGHT[colour], variant % len(SHADES)),
        DASHES[(dashes + variant) % len(DASHES)],
        MARKERS[(colour + dashes + variant) % len(MARKERS)],
        HATCHES[(colour + dashes + variant) % len(HATCHES)],
    )


def style_for(index: int) -> Style:
    """Return the style of the n-th series of a figure whose series are not methods, such as classes."""
    colours = LIGHT[1:]
    return Style(
        colours[index % len(colours)],
        DASHES[index % len(DASHES)],
        MARKERS[index % len(MARKERS)],
        HATCHES[index % len(HATCHES)],
    )


def shaded(color: str, shade: int) -> str:
    """Return a shade of a colour such as '#0068b3'."""
    amount = SHADES[shade]
    target = 255 if amount > 0 else 0
    channels = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(one + abs(amount) * (target - one)):02x}" for one in channels)


def page_colours() -> list[tuple[str, str, str]]:
    """Return every colour of figures as a CSS variable: its name, and its value on light and on dark background."""
    return [
        (f"--c{index}-{shade}", shaded(light, shade), shaded(dark, shade))
        for index, (light, dark) in enumerate(zip(LIGHT, DARK, strict=True))
        for shade in range(len(SHADES))
    ]


def sequential() -> LinearSegmentedColormap:
    """Return a colour map from transparent to blue, for light and dark backgrounds."""
    return _opacity_map([(0.03, HIGHER), (0.95, HIGHER)])


def diverging() -> LinearSegmentedColormap:
    """Return a colour map from orange over transparent to blue, for light and dark backgrounds."""
    return _opacity_map([(0.8, LOWER), (0.0, LOWER), (0.0, HIGHER), (0.8, HIGHER)])


def _opacity_map(stops: Sequence[tuple[float, str]]) -> LinearSegmentedColormap:
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    positions = [0.0, 1.0] if len(stops) == 2 else [0.0, 0.5, 0.5, 1.0]
    colours = [to_rgba(color, alpha) for alpha, color in stops]
    return LinearSegmentedColormap.from_list("opacity", list(zip(positions, colours, strict=True)))
