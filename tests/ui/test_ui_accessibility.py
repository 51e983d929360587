"""Accessibility of the dashboard: WCAG 2.1 AA by axe-core, in both themes, at desktop and phone width."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest
from tests.ui.browser import Browser
from tests.ui.test_ui_page import opened

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
VIEWS = ("clients", "partition", "cost", "uploads", "embedding", "metrics", "events", "config")
STATES = {
    "": "!document.querySelector('#runs').hidden",
    "new=&open=pear&pick=pear&pick=apple": (
        "document.querySelector('#start-description').textContent"
        " && document.querySelector('#detail path.line')"
        " && document.querySelectorAll('.methods tbody tr').length === 2"
    ),
    "open=spoiled/yaml": "document.querySelector('#detail .reason').textContent",
}


def violations(browser: Browser, place: str = "html") -> list[str]:
    """Run axe-core on a part of the page and return its findings as lines."""
    if not browser.js("'axe' in window"):
        browser.js(resources.files("axe_core_python").joinpath("axe.min.js").read_text() + "; 1")
    options = {"runOnly": RULES, "resultTypes": ["violations"]}
    answer: list[dict[str, Any]] = browser.js(
        f"axe.run({json.dumps(place)}, {json.dumps(options)}).then(({{ violations }}) => violations)"
    )
    return [f"{one['id']}: {node['html'][:200]} {node['failureSummary']}" for one in answer for node in one["nodes"]]


def show(browser: Browser, hash_: str, ready: str) -> None:
    browser.js(f"location.hash = {json.dumps(hash_)}")
    browser.wait(f"Boolean({ready})")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_violations(browser: Browser, address: str, dark: bool) -> None:
    browser.dark(dark)
    opened(browser, address)
    for hash_, ready in STATES.items():
        for width in (1400, 390):
            browser.size(width, 900)
            show(browser, hash_, ready)
            assert violations(browser) == [], (hash_, width)
    browser.size(1400, 900)
    for view in VIEWS:
        place = f"#view-{view}"
        show(browser, f"open=pear&view={view}", f"document.querySelector('{place}').innerText.length > 40")
        browser.wait(f"!document.querySelector('{place}').innerText.includes('Reading')")
        assert violations(browser, place) == [], view


def test_axe_finds_what_is_wrong(browser: Browser, address: str) -> None:
    opened(browser, address)
    browser.js("document.querySelector('#count').style.setProperty('color', '#bbb')")
    browser.js("document.querySelector('#state').parentElement.replaceWith(document.querySelector('#state'))")
    found = {line.partition(":")[0] for line in violations(browser, ".tools")}
    assert {"color-contrast", "select-name"} <= found
