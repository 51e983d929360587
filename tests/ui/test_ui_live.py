"""A run that is started from the dashboard: rounds appear live, and stopping it leaves a valid checkpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.ui.browser import Browser
from tests.ui.conftest import serving
from tests.ui.test_ui_guard import ask, token_of
from tests.ui.test_ui_page import row

from polyfed.runs import lock_owner
from polyfed.runs.checkpoint import Checkpoints
from polyfed.runs.folder import RunFolder

LINE = "document.querySelector('#detail svg.chart path.line')?.getAttribute('d').split('L').length"
OVERRIDES = "rounds=100000\nclients=3\ndata.limit=150\nengine.name=serial\nmethod=local"
ERROR = "document.querySelector('#start-error').textContent"


def test_a_run_is_started_followed_and_stopped(browser: Browser, tmp_path: Path, screenshots: Path) -> None:
    with serving(tmp_path, max_started=1) as page:
        browser.goto(page.address)
        browser.wait("!document.querySelector('#empty').hidden")
        browser.js("window.before = 1")
        start(browser, screenshots)
        assert {path.name for path in tmp_path.iterdir()} == {"live"}
        owner = lock_owner.read(tmp_path / "live" / ".lock")
        assert owner is not None and os.getsid(owner.pid) == owner.pid  # Ctrl-C of the dashboard does not reach it
        body = json.dumps({"preset": "quickstart", "overrides": "", "name": "second"})
        status, text, _ = ask(page.address, "/api/start", "POST", body, X_Polyfed_Token=token_of(page.address))
        assert status == 409 and "at most 1 may run at the same time" in json.loads(text)["error"]
        watch_and_stop(browser, tmp_path / "live", screenshots)
        browser.wait("fetch('/api/launch?id=live').then((answer) => answer.json()).then(({ ended }) => ended)")
        browser.goto("about:blank#")


def start(browser: Browser, screenshots: Path) -> None:
    """Start a run with the keyboard: first with a mistake, which the page shows."""
    focus = "document.activeElement"
    browser.js("document.querySelector('#new').focus()")
    browser.press("Enter")
    browser.wait("document.querySelector('#start-description').textContent.includes('8x8 digits')")
    assert browser.js(f"{focus}.id") == "start-title"
    for expected in ("close", "start-preset", "start-overrides"):
        browser.press("Tab")
        assert browser.js(f"{focus}.id || {focus}.className") == expected
    browser.type(OVERRIDES.replace("=local", "=lokal"))
    browser.press("Tab")
    browser.type("live")
    browser.press("Enter")
    browser.wait(ERROR)
    assert browser.js(ERROR) == "There is no method called 'lokal'; did you mean 'local'?"
    assert browser.js("document.querySelector('#start-overrides').ariaInvalid") == "true"
    browser.screenshot(screenshots / "start-mistake.png")
    browser.js(f"document.querySelector('#start-overrides').value = {json.dumps(OVERRIDES)}")
    browser.press("Enter")
    browser.wait(
        "document.querySelector('#start pre')?.textContent.startsWith('polyfed run quickstart rounds=100000')"
    )
    assert browser.js(ERROR) == ""
    browser.wait("document.querySelector('#detail-title')?.textContent === 'live'")  # it opens as soon as it exists
    assert browser.js("document.querySelector('#start').hidden")


def watch_and_stop(browser: Browser, folder: Path, screenshots: Path) -> None:
    browser.wait(f"document.querySelector({json.dumps(row('live'))})?.innerText.includes('running')")
    rounds = browser.wait(f"{LINE} >= 2 && {LINE}")
    browser.wait(f"{LINE} > {rounds}")
    browser.wait("document.querySelector('#detail .facts').innerText.includes('left')")
    browser.click("#detail .action button")
    browser.wait("document.activeElement.textContent === 'Yes, stop'")
    browser.screenshot(screenshots / "live.png")
    browser.press("Enter")
    browser.wait("document.querySelector('#detail .action').innerText.includes('Stop requested')")
    browser.wait("document.querySelector('#detail .badge').textContent.includes('stopped')")
    assert browser.js("document.querySelector('#detail .action').textContent") == ""
    assert browser.js("window.before") == 1  # the page was not reloaded
    last, _, damaged = Checkpoints(folder / "checkpoint").load_latest()
    events = RunFolder(folder).events()
    assert last is not None and damaged == []
    assert events[-1]["event"] == "stopped" and events[-1]["round"] == last.round == len(last.history)
    assert lock_owner.read(folder / ".lock") is None
