"""Colours of methods: stable, different for methods of polyfed, and readable on both backgrounds."""

from __future__ import annotations

import pytest

from polyfed import catalogue
from polyfed.comparison.palette import DARK, DASH_PATTERNS, LIGHT, method_colour, method_style


def test_every_method_has_a_style_of_its_own() -> None:
    styles = {name: method_style(name) for name in catalogue.methods()}
    assert len(set(styles.values())) == len(styles)
    assert all(colour < len(LIGHT) == len(DARK) and dashes < DASH_PATTERNS - 2 for colour, dashes in styles.values())
    assert styles["local"] == (0, 0)


@pytest.mark.parametrize("name", ["mine", "", "é", "\udcff", "fedproto2", "<b>"])
def test_methods_of_users_have_a_style_that_no_method_of_polyfed_has(name: str) -> None:
    assert method_style(name) == method_style(name)
    assert method_style(name) not in {method_style(known) for known in catalogue.methods()}
    assert method_colour(name) in LIGHT[1:] and method_colour(name, dark=True) in DARK[1:]


def luminance(colour: str) -> float:
    """Return the relative luminance as WCAG 2 defines it."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(("colours", "background"), [(LIGHT, "#ffffff"), (DARK, "#1e2329")])
def test_colours_are_readable(colours: tuple[str, ...], background: str) -> None:
    for colour in colours:
        dark, light = sorted((luminance(colour), luminance(background)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, colour
