"""Colours of methods. A method has the same colour and dashes in every figure, report and page.

The colour of a method does not depend on the other methods that are shown. Twelve colours do not suffice for all
methods, so methods that share a colour have different dashes.
"""

from __future__ import annotations

import zlib

# At the same index, one colour for light and one for dark backgrounds. All have a contrast of at least 4.5 to their
# background, as WCAG AA demands of text.
LIGHT = (
    "#5c6470",  # grey: the baseline `local`
    "#0068b3",  # blue
    "#c44601",  # orange
    "#00795a",  # green
    "#a83e86",  # magenta
    "#7d6400",  # gold
    "#6b46c1",  # purple
    "#00748c",  # teal
    "#b3202e",  # red
    "#7a4a2b",  # brown
    "#477300",  # lime
    "#2b3a8f",  # indigo
)
DARK = (
    "#aab2bd",
    "#5cb3f0",
    "#ff944d",
    "#2fc79a",
    "#e891c4",
    "#d9bf3c",
    "#cba6ff",
    "#4cc9e0",
    "#ff8a8a",
    "#c9a284",
    "#9ed45a",
    "#7c92f5",
)
DASH_PATTERNS = 5  # solid and four others; the last two are for methods of users

# Methods by colour, in the order of dash patterns. Methods that are often compared have different colours.
_METHODS: tuple[tuple[str, ...], ...] = (
    ("local",),
    ("fedavg", "fedgen", "scaffold"),
    ("fedproto", "fedktl", "heterofl"),
    ("fedlatent", "fedgh", "fednova"),
    ("fedvtc", "fml", "fedrolex"),
    ("lg-fedavg", "fedl2g", "per-fedavg"),
    ("dffke", "fedkd", "moon"),
    ("feddistill", "fedfree", "pfedla"),
    ("fedtgp", "inclusivefl", "fed-dropout"),
    ("ccvr", "scalefl", "fedktl-lite"),
    ("fedtype", "fedprox"),
    ("pfedafm",),
)
_STYLES = {name: (colour, dashes) for colour, names in enumerate(_METHODS) for dashes, name in enumerate(names)}


def method_style(name: str) -> tuple[int, int]:
    """Return the index of a method's colour in `LIGHT` and `DARK`, and the index of its dash pattern.

    The style of an unknown method follows from its name, and differs from the styles of all methods of polyfed.
    """
    style = _STYLES.get(name)
    if style is None:
        checksum = zlib.crc32(name.encode(errors="replace"))
        style = (1 + checksum % (len(LIGHT) - 1), DASH_PATTERNS - 2 + checksum // len(LIGHT) % 2)
    return style


def method_colour(name: str, *, dark: bool = False) -> str:
    """Return the colour of a method, such as '#0068b3', for a light or a dark background."""
    return (DARK if dark else LIGHT)[method_style(name)[0]]
