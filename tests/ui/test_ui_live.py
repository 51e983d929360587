"""A running experiment in the dashboard: rounds appear live, and stopping it leaves a valid checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.ui.browser import Browser
from tests.ui.conftest import serving
from tests.ui.test_ui_page import row

from polyfed.runs import lock_owner
from polyfed.runs.checkpoint import Checkpoints
from polyfed.runs.folder import RunFolder

LINE = "document.querySelector('#detail svg.chart path.line')?.getAttribute('d').split('L').length"


def test_rounds_appear_live_and_the_run_can_be_stopped(browser: Browser, tmp_path: Path, screenshots: Path) -> None:
    with serving(tmp_path) as page:
        watch_and_stop(browser, page.address, tmp_path / "live", screenshots)
        browser.goto("about:blank#")


def watch_and_stop(browser: Browser, address: str, folder: Path, screenshots: Path) -> None:
    options = ["rounds=100000", "clients=3", "data.limit=150", "engine.name=serial", "method=local", "--quiet"]
    command = [sys.executable, "-m", "polyfed", "run", "quickstart", *options, "--out", str(folder)]
    browser.goto(address)
    browser.wait("!document.querySelector('#empty').hidden")
    browser.js("window.before = 1")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            browser.wait(f"document.querySelector({json.dumps(row('live'))})?.innerText.includes('running')")
            browser.click(f"{row('live')} a")
            rounds = browser.wait(f"{LINE} >= 2 && {LINE}")
            browser.wait(f"{LINE} > {rounds}")
            browser.wait("document.querySelector('#detail .facts').innerText.includes('left')")
            browser.click(".action button")
            browser.wait("document.activeElement.textContent === 'Yes, stop'")
            browser.screenshot(screenshots / "live.png")
            browser.press("Enter")
            browser.wait("document.querySelector('.action').innerText.includes('Stop requested')")
            assert process.wait(timeout=60) == 130
        finally:
            process.kill()
    browser.wait("document.querySelector('#detail .badge').textContent.includes('stopped')")
    assert browser.js("document.querySelector('.action').textContent") == ""
    assert browser.js("window.before") == 1  # the page was not reloaded
    last, _, damaged = Checkpoints(folder / "checkpoint").load_latest()
    events = RunFolder(folder).events()
    assert last is not None and damaged == []
    assert events[-1]["event"] == "stopped" and events[-1]["round"] == last.round == len(last.history)
    assert lock_owner.read(folder / ".lock") is None
