"""The page of reliability figures is what its script writes from the result files."""

from __future__ import annotations

from scripts.reliability import page


def test_the_page_has_the_figures_of_the_result_files() -> None:
    assert page.PAGE.read_text() == page.text()
