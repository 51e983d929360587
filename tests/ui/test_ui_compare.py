"""The comparison by method in a real browser: means over seeds, colours, widths, and words that stay whole."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from tests.ui.browser import Browser
from tests.ui.test_ui_page import cells, details_of, opened, row

from polyfed.comparison.palette import method_colour

LINES = "[...document.querySelectorAll('#comparison svg.chart path.line')]"


def select(browser: Browser, *names: str) -> None:
    for name in names:
        browser.click(f"{row(name)} input")


def finals(runs: Path, *names: str) -> list[float]:
    results = [json.loads((runs / name / "result.json").read_text()) for name in names]
    return [100 * one["accuracy"]["global"]["final"] for one in results]


def choose(browser: Browser, label: str, value: str) -> None:
    find = f"[...document.querySelectorAll('#comparison label')].find((l) => l.innerText.startsWith({label!r}))"
    browser.js(
        f"(() => {{ const s = {find}.querySelector('select'); s.value = {value!r};"
        " s.dispatchEvent(new Event('change', {bubbles: true})) })()"
    )


def test_runs_are_compared_by_method(browser: Browser, address: str, runs: Path, screenshots: Path) -> None:
    opened(browser, address)
    select(browser, "apple", "pear", "pear-2")
    browser.wait(f"{LINES}.length === 2 && {LINES}.every((line) => line.getAttribute('d').split('L').length === 4)")
    browser.wait("document.querySelectorAll('#comparison path.band').length === 1")  # two seeds
    (local,), fedproto = finals(runs, "apple"), finals(runs, "pear", "pear-2")
    shown = cells(browser, "#comparison .methods")
    assert [line[:2] for line in shown] == [["local", "1"], ["fedproto", "2"]]
    assert shown[0][2].removesuffix(" ★") == f"{local:.1f} %" and shown[0][3] == "baseline"
    spread = f"{statistics.mean(fedproto):.1f} ± {statistics.stdev(fedproto):.1f} %"
    assert shown[1][2].removesuffix(" ★") == spread
    gain = fedproto[0] - local  # seed 0, which both have
    sign = "+" if gain > 0 else "\u2212"  # minus sign
    assert shown[1][3] == f"{sign}{abs(gain):.1f}"
    best = "local" if local > statistics.mean(fedproto) else "fedproto"
    assert [line[0] for line in shown if "★" in line[2]] == [best]
    assert "fedproto" in browser.js("document.querySelector('#comparison svg.chart').getAttribute('aria-label')")
    browser.size(1600, 1000)
    browser.screenshot(screenshots / "comparison-1600.png")
    choose(browser, "Lines", "runs")
    browser.wait(f"{LINES}.length === 3")
    browser.goto(browser.js("location.href"))  # the selection is part of the URL
    browser.wait(f"{LINES}.length === 2")
    browser.click("#comparison .close")
    browser.wait("document.querySelector('#comparison').hidden")


def test_settings_of_one_method_are_not_averaged(browser: Browser, address: str) -> None:
    opened(browser, address)
    select(browser, "apple", "plum")
    browser.wait(f"{LINES}.length === 2")
    browser.wait("document.querySelectorAll('#comparison .methods tbody tr').length === 2")
    assert [line[0] for line in cells(browser, "#comparison .methods")] == ["local, lr 0.01", "local, lr 0.1"]
    colours = set(browser.js(f"{LINES}.map((line) => getComputedStyle(line).stroke)"))
    dashes = set(browser.js(f"{LINES}.map((line) => getComputedStyle(line).strokeDasharray)"))
    assert len(colours) == 1 and len(dashes) == 2
    browser.click("#difference summary")
    browser.wait("document.querySelectorAll('#difference tbody tr').length > 0")
    table = cells(browser, "#difference")
    assert ["train.lr", "0.01", "0.1"] in table and not any(line[0].startswith("method") for line in table)


def test_all_runs_that_are_shown_can_be_selected(browser: Browser, address: str) -> None:
    opened(browser, address)
    browser.press("/")
    browser.type("pear")
    browser.click("#runs thead input")
    browser.wait("document.querySelector('#comparison').innerText.includes('Selected runs (2)')")
    browser.click("#runs thead input")
    browser.wait("document.querySelector('#comparison').hidden")


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[k : k + 2], 16)) for k in (1, 3, 5))})"


def test_a_method_has_its_colour_everywhere(browser: Browser, address: str) -> None:
    opened(browser, address)
    select(browser, "pear", "apple")
    browser.wait(f"{LINES}.length === 2")
    expected = [rgb(method_colour(name)) for name in ("local", "fedproto")]
    assert browser.js(f"{LINES}.map((line) => getComputedStyle(line).stroke)") == expected
    in_list = f"getComputedStyle(document.querySelector({json.dumps(row('pear'))} + ' .line')).stroke"
    assert browser.js(in_list) == expected[1]
    details_of(browser, "pear", "overview")
    browser.wait("document.querySelector('#view-overview path.line') !== null")
    assert browser.js("getComputedStyle(document.querySelector('#view-overview path.line')).stroke") == expected[1]
    browser.dark(True)
    browser.wait(
        "getComputedStyle(document.querySelector('#view-overview path.line')).stroke === "
        + json.dumps(rgb(method_colour("fedproto", dark=True)))
    )


# lines of a word: the boxes of its text at different heights
BROKEN = """(() => {
  const broken = [];
  const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) {
    const node = nodes.currentNode;
    if (!node.parentElement.closest('td, th, dt, dd, [role=tab]')) continue;
    for (const match of node.data.matchAll(/[^\\s\\/,=_:;@+-]+/g)) {
      const range = document.createRange();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      const tops = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
      if (tops.size > 1) broken.push(match[0]);
    }
  }
  return broken;
})()"""


def test_words_are_not_broken(browser: Browser, address: str) -> None:
    opened(browser, address)
    select(browser, "pear", "apple")
    for view in ("clients", "partition", "cost", "uploads", "config"):
        browser.js(f"location.hash = 'open=pear&view={view}&pick=pear&pick=apple'")
        browser.wait(f"document.querySelector('#view-{view} table') !== null && {LINES}.length === 2")
        for width in (1280, 950, 400):
            browser.size(width, 900)
            assert browser.js(BROKEN) == [], (view, width)


def test_panels_can_be_widened(browser: Browser, address: str) -> None:
    opened(browser, address)
    assert browser.js("getComputedStyle(document.querySelector('#split')).display") == "none"
    browser.click(f"{row('pear')} a")
    width = "document.querySelector('#panels').getBoundingClientRect().width"
    browser.js("document.querySelector('#split').focus()")
    before = browser.js(width)
    browser.press("ArrowLeft")
    wider = browser.js(width)
    assert wider > before
    box = browser.js(
        "(() => { const b = document.querySelector('#split').getBoundingClientRect(); return [b.x, b.y] })()"
    )
    drag(browser, box[0] + 5, box[1] + 200, box[0] + 205)
    assert abs(browser.js(width) - (wider - 200)) < 20
    now = browser.js("document.querySelector('#split').ariaValueNow")
    browser.goto(browser.js("location.href"))  # the width is remembered
    assert browser.js("document.querySelector('#split').ariaValueNow") == now
    browser.js("localStorage.clear()")


def drag(browser: Browser, x: float, y: float, to: float) -> None:
    mouse: dict[str, Any] = {"y": y, "button": "left", "clickCount": 1}
    browser.call("Input.dispatchMouseEvent", type="mousePressed", x=x, **mouse)
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=to, buttons=1, **mouse)
    browser.call("Input.dispatchMouseEvent", type="mouseReleased", x=to, **mouse)
