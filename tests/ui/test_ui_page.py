"""The dashboard in a real browser: list, selection, details, keyboard, and escaping of names."""

from __future__ import annotations

import json
from pathlib import Path

from tests.ui.browser import Browser
from tests.ui.conftest import EVIL, NAMES, serving

ROWS = "[...document.querySelectorAll('#runs tbody tr:not([hidden])')]"
SHOWN = f"{ROWS}.map((row) => row.querySelector('a').textContent)"
ALL = {"apple", "pear", "pear-2", "plum", "spoiled/yaml", "spoiled/result", EVIL}


def row(name: str) -> str:
    """Return the CSS selector of the row of a run."""
    return f"tr:has(input[aria-label={json.dumps(f'Select {name}')}])"


def opened(browser: Browser, address: str) -> None:
    browser.goto(address)
    browser.wait(f"{ROWS}.length === {len(ALL)} && !document.querySelector('#runs .reading')")


def test_list_shows_every_run_with_its_state(browser: Browser, address: str, screenshots: Path) -> None:
    opened(browser, address)
    assert set(browser.js(SHOWN)) == ALL
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
    browser.wait("document.querySelector('#difference').textContent.includes('config.yaml cannot be read')")


def test_filtering_and_sorting(browser: Browser, address: str) -> None:
    opened(browser, address)
    browser.press("/")
    browser.type("LOCAL digits")
    assert browser.wait(f"{ROWS}.length === 2") and set(browser.js(SHOWN)) == {"apple", "plum"}
    assert browser.text("#count") == f"2 of {len(ALL)} runs"
    browser.press("Escape")
    assert browser.js(f"{ROWS}.length") == len(ALL)
    select = "document.querySelector('#state')"
    choose = f"((state) => {{ {select}.value = state; {select}.dispatchEvent(new Event('change')) }})"
    browser.js(f"{choose}('broken')")
    assert set(browser.js(SHOWN)) == {"spoiled/yaml", "spoiled/result"}
    browser.js(f"{choose}('')")
    browser.click("th[data-key=id] button")
    assert browser.js(SHOWN) == sorted(ALL)
    browser.click("th[data-key=id] button")
    assert browser.js(SHOWN) == sorted(ALL, reverse=True)
    assert browser.js("document.querySelector('th[data-key=id]').ariaSort") == "descending"
    browser.click("th[data-key=personal] button")  # highest first, unknown values last
    values = browser.js(f"{ROWS}.map((row) => parseFloat(row.querySelector('.personal').textContent))")
    known = [value for value in values if value is not None]
    assert len(known) >= 3 and known == sorted(known, reverse=True) and values[: len(known)] == known


def details_of(browser: Browser, name: str, view: str) -> None:
    """Open a view of a run."""
    browser.js(f"location.hash = new URLSearchParams({{open: {json.dumps(name)}, view: {json.dumps(view)}}})")
    browser.wait(f"document.querySelector('#detail-title')?.textContent === {json.dumps(name)}")
    browser.wait(f"!document.querySelector('#view-{view}').hidden")


def test_details_of_a_run(browser: Browser, address: str, screenshots: Path) -> None:
    opened(browser, address)
    browser.size(1600, 1300)
    browser.click(f"{row('pear')} a")
    browser.wait("document.querySelectorAll('#view-overview path.line').length === 3")
    facts = browser.text("#detail .facts")
    assert "best" in facts and "up," in facts and "round 4 of 4" in browser.text("#detail .state")
    browser.screenshot(screenshots / "detail-1600.png")
    browser.dark(True)
    browser.screenshot(screenshots / "detail-1600-dark.png")
    browser.dark(False)
    details_of(browser, "pear", "events")
    browser.wait("document.querySelector('.notes').innerText.includes('started')")
    assert "finished" in browser.text(".notes")
    details_of(browser, "pear", "config")
    browser.wait("document.querySelector('#detail .config').innerText.includes('partition.scheme')")
    for view in ("overview", "clients", "partition", "cost", "uploads", "embedding", "metrics"):
        details_of(browser, "pear", view)
        browser.size(400, 1600)
        browser.wait("document.querySelector('#detail').getBoundingClientRect().width <= 400")
        assert browser.js("document.documentElement.scrollWidth") <= 400, view
        browser.js("document.querySelector('#detail .heading').scrollIntoView()")
        browser.screenshot(screenshots / f"{view}-400.png")
        browser.size(1600, 1300)
        browser.screenshot(screenshots / f"{view}-1600.png")


def cells(browser: Browser, selector: str) -> list[list[str]]:
    """Return the texts of the body of a table."""
    rows = browser.js(
        f"[...document.querySelectorAll({json.dumps(selector + ' tbody tr')})]"
        ".map((row) => [...row.children].map((cell) => cell.innerText.trim()))"
    )
    assert rows, selector
    return list(rows)


def test_views_show_what_the_run_folder_holds(browser: Browser, address: str, runs: Path) -> None:
    opened(browser, address)
    clients = json.loads((runs / "pear" / "clients.json").read_text())["clients"]
    result = json.loads((runs / "pear" / "result.json").read_text())
    details_of(browser, "pear", "clients")
    browser.wait("document.querySelector('#view-clients').innerText.includes('tiny-cnn')")
    shown = cells(browser, "#view-clients")
    assert [line[0] for line in shown] == NAMES and [line[1] for line in shown] == [one["model"] for one in clients]
    accuracies = [f"{100 * value:.1f} %" for value in result["accuracy"]["personal"]["by_client"]]
    assert [line[5] for line in shown] == accuracies
    details_of(browser, "pear", "partition")
    browser.wait("document.querySelector('#view-partition table') !== null")
    for line, client in zip(cells(browser, "#view-partition"), clients, strict=True):
        counts = [client["train"].get(str(label), "") for label in range(10)]
        assert line == [client["name"], *map(str, counts), str(sum(client["train"].values()))]
    details_of(browser, "pear", "cost")
    total = {way: result["bytes"][way] + result["bytes"]["overhead"][way] for way in ("up", "down")}
    last = cells(browser, "#view-cost")[-1]
    assert last == ["total", *(f"{total[way] / 1024:.1f} KiB" for way in ("up", "down"))]
    details_of(browser, "pear", "uploads")
    browser.wait("document.querySelectorAll('#view-uploads table').length === 2")
    first = cells(browser, "#view-uploads")
    assert first[0][0] == "prototypes" and first[0][5] == "none" and [line[0] for line in first[-3:]] == NAMES
    details_of(browser, "pear", "embedding")
    browser.wait("document.querySelectorAll('.scatter circle').length > 50")
    many = browser.js("document.querySelectorAll('.scatter circle.off').length")
    browser.click("#view-embedding .keys button")
    assert many == 0 and browser.js("document.querySelectorAll('.scatter circle.off').length") > 0
    assert browser.js("document.activeElement.ariaPressed") == "true"
    details_of(browser, "pear", "metrics")
    browser.wait("document.querySelectorAll('#view-metrics table').length === 2")
    offered = browser.js("[...document.querySelectorAll('#view-metrics option')].map((option) => option.value)")
    assert {"worst_decile", "macro_f1"} <= set(offered)
    choose = "document.querySelector('#view-metrics select')"
    browser.js(f"{choose}.value = 'macro_f1'; {choose}.dispatchEvent(new Event('change'))")
    head = browser.js(
        "[...document.querySelectorAll('#view-metrics thead tr:first-child th')].map((h) => h.innerText)"
    )
    shown = cells(browser, "#view-metrics")
    metric = result["metrics"]["global"]["macro_f1"]
    at = head.index("global")
    assert [line[at] for line in shown[:4]] == [f"{100 * v:.1f} %" for v in [*metric["by_client"], metric["final"]]]
    kind = browser.js("document.querySelectorAll('#view-metrics select')[1].value")
    matrix = result["metrics"][kind]["confusion"]
    assert shown[4] == ["0", *(str(count or "") for count in matrix[0])]
    details_of(browser, "apple", "uploads")
    browser.wait("document.querySelector('#view-uploads').innerText.includes('evaluation')")


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
    browser.wait("!document.querySelector('#comparison').hidden")
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
        if browser.js(f"{focus}.matches('[role=tab]')"):
            break
    browser.press("ArrowLeft")  # from the first tab to the last
    assert browser.js(f"{focus}.textContent") == "Config" and browser.js("location.hash").endswith(
        "view=config&pick=apple"
    )
    browser.press("ArrowRight")
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
    browser.wait("document.querySelectorAll('.legend tbody tr').length")
    assert browser.text("#detail-title") == EVIL
    browser.click("#tab-clients")
    browser.wait("document.querySelector('#view-clients').innerText.includes('<img')")
    browser.click("#tab-config")
    browser.wait("document.querySelector('#view-config .config') !== null")
    browser.click("#tab-events")
    browser.wait("document.querySelector('.notes li time') !== null")
    notes = browser.text(".notes")
    assert f"client {EVIL}7 in {EVIL}step, round 1: {EVIL}why" in notes and f"{EVIL}end" in notes
    assert EVIL in browser.js("document.querySelector('.legend').textContent")
    assert EVIL in browser.text(".methods")
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
