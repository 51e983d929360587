"""The dashboard in a real browser: list, selection, details, keyboard, and escaping of names."""

from __future__ import annotations

import json
from pathlib import Path

from tests.ui.browser import Browser
from tests.ui.conftest import EVIL, serving

ROWS = "[...document.querySelectorAll('#runs tbody tr:not([hidden])')]"
NAMES = f"{ROWS}.map((row) => row.querySelector('a').textContent)"
ALL = {"apple", "pear", "plum", "spoiled/yaml", "spoiled/result", EVIL}


def row(name: str) -> str:
    """Return the CSS selector of the row of a run."""
    return f"tr:has(input[aria-label={json.dumps(f'Select {name}')}])"


def opened(browser: Browser, address: str) -> None:
    browser.goto(address)
    browser.wait(f"{ROWS}.length === {len(ALL)} && !document.querySelector('#runs .reading')")


def test_list_shows_every_run_with_its_state(browser: Browser, address: str, screenshots: Path) -> None:
    opened(browser, address)
    assert set(browser.js(NAMES)) == ALL
    pear = browser.text(row("pear"))
    assert "finished" in pear and "fedproto" in pear and "digits" in pear and "4/4" in pear and "%" in pear
    browser.size(1600, 900)
    assert "KiB" in browser.text(f"{row('pear')} td.up")
    browser.screenshot(screenshots / "list-1600.png")
    browser.dark(True)
    browser.screenshot(screenshots / "list-1600-dark.png")
    browser.dark(False)
    browser.size(400, 800)
    assert browser.js("document.documentElement.scrollWidth") <= 400
    browser.screenshot(screenshots / "list-400.png")


def test_broken_runs_show_a_reason(browser: Browser, address: str) -> None:
    opened(browser, address)
    assert "broken" in browser.text(row("spoiled/yaml")) and "config.yaml cannot be read" in browser.text(
        row("spoiled/yaml")
    )
    assert "result.json holds no result that polyfed wrote" in browser.text(row("spoiled/result"))
    browser.click(f"{row('spoiled/yaml')} a")
    browser.wait("document.querySelector('#detail .reason')?.textContent.includes('config.yaml cannot be read')")
    browser.click(f"{row('spoiled/yaml')} input")
    browser.click(f"{row('apple')} input")
    browser.wait("document.querySelector('#difference').innerText.includes('config.yaml cannot be read')")


def test_filtering_and_sorting(browser: Browser, address: str) -> None:
    opened(browser, address)
    browser.press("/")
    browser.type("LOCAL digits")
    assert browser.wait(f"{ROWS}.length === 2") and set(browser.js(NAMES)) == {"apple", "plum"}
    assert browser.text("#count") == f"2 of {len(ALL)} runs"
    browser.press("Escape")
    assert browser.js(f"{ROWS}.length") == len(ALL)
    select = "document.querySelector('#state')"
    choose = f"((state) => {{ {select}.value = state; {select}.dispatchEvent(new Event('change')) }})"
    browser.js(f"{choose}('broken')")
    assert set(browser.js(NAMES)) == {"spoiled/yaml", "spoiled/result"}
    browser.js(f"{choose}('')")
    browser.click("th[data-key=id] button")
    assert browser.js(NAMES) == sorted(ALL)
    browser.click("th[data-key=id] button")
    assert browser.js(NAMES) == sorted(ALL, reverse=True)
    assert browser.js("document.querySelector('th[data-key=id]').ariaSort") == "descending"
    browser.click("th[data-key=personal] button")  # highest first, unknown values last
    values = browser.js(f"{ROWS}.map((row) => parseFloat(row.querySelector('.personal').textContent))")
    known = [value for value in values if value is not None]
    assert len(known) >= 3 and known == sorted(known, reverse=True) and values[: len(known)] == known


def test_comparison_of_selected_runs(browser: Browser, address: str, screenshots: Path) -> None:
    opened(browser, address)
    for name in ("apple", "plum", "pear"):
        browser.click(f"{row(name)} input")
    lines = "[...document.querySelectorAll('#overlay svg path.line')]"
    browser.wait(f"{lines}.length === 3 && {lines}.every((line) => line.getAttribute('d').split('L').length === 4)")
    legend = browser.text(".legend")
    assert all(name in legend for name in ("apple", "plum", "pear")) and legend.count("★") >= 1
    browser.wait("document.querySelectorAll('#difference tbody tr').length > 0")
    table = browser.js(
        "[...document.querySelectorAll('#difference tr')].map((r) => [...r.children].map((c) => c.textContent))"
    )
    assert table[0] == ["Key", "apple", "plum"] and ["train.lr", "0.01", "0.1"] in table
    assert not any(line[0].startswith("method") for line in table)
    assert "apple" in browser.js("document.querySelector('#overlay svg').getAttribute('aria-label')")
    browser.size(1600, 1000)
    browser.screenshot(screenshots / "overlay-1600.png")
    browser.goto(browser.js("location.href"))  # the selection is part of the URL
    browser.wait(f"{lines}.length === 3")
    browser.click("#clear")
    browser.wait("document.querySelector('#overlay').hidden")


def test_details_of_a_run(browser: Browser, address: str, screenshots: Path) -> None:
    opened(browser, address)
    browser.size(1600, 1300)
    browser.click(f"{row('pear')} a")
    browser.wait("document.querySelectorAll('#detail svg.chart path.line').length >= 6")
    facts = browser.text("#detail .facts")
    assert "4 of 4" in facts and "best" in facts and "up," in facts
    assert browser.js("document.querySelectorAll('#detail svg.bars').length") == 2
    assert "started" in browser.text(".notes") and "finished" in browser.text(".notes")
    browser.click("#detail details:last-of-type summary")
    browser.wait("document.querySelector('#detail .config').innerText.includes('partition.scheme')")
    browser.js("document.querySelector('#detail .heading').scrollIntoView()")
    browser.screenshot(screenshots / "detail-1600.png")
    browser.dark(True)
    browser.screenshot(screenshots / "detail-1600-dark.png")
    browser.dark(False)
    browser.size(400, 1600)
    browser.wait("document.querySelector('#detail svg.chart').getBoundingClientRect().width <= 400")
    assert browser.js("document.documentElement.scrollWidth") <= 400
    browser.js("document.querySelector('#detail .heading').scrollIntoView()")
    browser.screenshot(screenshots / "detail-400.png")


def test_keyboard_navigation(browser: Browser, address: str, screenshots: Path) -> None:
    opened(browser, address)
    focus = "document.activeElement"
    browser.click("th[data-key=id] button")
    for _ in range(30):  # Tab moves from the headings to the first run
        browser.press("Tab")
        if browser.js(f"{focus}.type === 'checkbox'"):
            break
    first = browser.js(f"{focus}.ariaLabel")
    assert first == f"Select {sorted(ALL)[0]}"
    browser.press("ArrowDown")
    assert browser.js(f"{focus}.ariaLabel") == "Select apple"
    browser.press(" ")
    browser.wait("!document.querySelector('#overlay').hidden")
    browser.press("Tab")
    assert browser.js(f"{focus}.textContent") == "apple"
    assert browser.js(f"getComputedStyle({focus}).outlineStyle") == "solid"
    browser.press("ArrowDown")
    browser.press("Enter")
    browser.wait("document.querySelector('#detail-title')?.textContent === 'pear'")
    assert browser.js(f"{focus}.id") == "detail-title"
    browser.wait("document.querySelector('#detail svg.chart path.line') !== null")
    for _ in range(30):
        browser.press("Tab")
        if browser.js(f"{focus}.matches('svg.chart')"):
            break
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    assert "round 2" in browser.text("#detail .readout") and "personal" in browser.text("#detail .readout")
    browser.screenshot(screenshots / "keys.png")
    browser.press("Escape")
    browser.wait("document.querySelector('#detail').hidden")
    assert browser.js(f"{focus}.textContent") == "pear"
    browser.press("ArrowUp")
    assert browser.js(f"{focus}.textContent") == "apple"


def test_markup_in_names_is_escaped(browser: Browser, address: str, screenshots: Path) -> None:
    opened(browser, address)
    cell = browser.js(f"{ROWS}.find((row) => row.innerText.includes('onerror')).innerText")
    assert cell.count(EVIL) == 2 and "failed" in cell  # its name and its method
    browser.js(f"{ROWS}.find((row) => row.innerText.includes('onerror')).querySelector('input').click()")
    browser.js(f"{ROWS}.find((row) => row.innerText.includes('onerror')).querySelector('a').click()")
    browser.wait(
        "document.querySelector('.notes li time') !== null && document.querySelectorAll('.legend tbody tr').length"
    )
    assert browser.text("#detail-title") == EVIL
    notes = browser.text(".notes")
    assert f"client {EVIL}7 in {EVIL}step, round 1: {EVIL}why" in notes and f"{EVIL}end" in notes
    assert EVIL in browser.text(".legend")
    browser.wait("document.querySelector('#detail .config') !== null")
    assert browser.js("document.querySelectorAll('img').length") == 0
    assert browser.js("window.hacked ?? 0") == 0
    browser.screenshot(screenshots / "markup.png")


def test_empty_folder(browser: Browser, tmp_path: Path, screenshots: Path) -> None:
    with serving(tmp_path) as page:
        browser.goto(page.address)
        browser.wait("!document.querySelector('#empty').hidden")
        assert "There are no runs yet" in browser.text("#empty") and browser.text("#count") == "0 runs"
        browser.screenshot(screenshots / "empty.png")
        browser.goto("about:blank#")


def test_many_rows(browser: Browser, tmp_path: Path, screenshots: Path) -> None:
    from polyfed.benchmarks.ui import fill

    fill(tmp_path, runs=400, rounds=2, clients=1)
    with serving(tmp_path) as page:
        browser.goto(page.address)
        browser.wait(f"{ROWS}.length === 400 && !document.querySelector('#runs .reading')")
        assert browser.text("#count") == "400 runs"
        browser.press("/")
        browser.type("run-0399")
        browser.wait(f"{ROWS}.length === 1")
        browser.goto("about:blank#")
