"""Fixtures: one browser, and a dashboard of real and damaged runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import pytest
from tests.ui.browser import Browser

import polyfed
from polyfed.ui.server import Dashboard, open_dashboard

NAMES = ["north", "south", "east"]
SMALL: dict[str, Any] = {
    "rounds": 4,
    "clients": 3,
    "names": NAMES,
    "data": {"limit": 120},
    "engine": {"name": "serial"},
    "evaluate": {"features": True, "metrics": ["macro_f1", "confusion"]},
}
EVIL = "<img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create four real runs, two broken ones, and one whose names contain markup."""
    root = tmp_path_factory.mktemp("ui") / "runs"
    for name, method, lr, seed in (
        ("apple", "local", 0.01, 0),
        ("pear", "fedproto", 0.01, 0),
        ("pear-2", "fedproto", 0.01, 1),
        ("plum", "local", 0.1, 0),
    ):
        polyfed.run("quickstart", method=method, out=root / name, train={"lr": lr}, seed=seed, **SMALL)
    spoiled = root / "spoiled"
    (spoiled / "yaml").mkdir(parents=True)
    (spoiled / "yaml" / "config.yaml").write_text("method: {name: [")
    (spoiled / "result").mkdir()
    shutil.copy(root / "apple" / "config.yaml", spoiled / "result")
    (spoiled / "result" / "result.json").write_text('{"method": "local"}')
    evil = root / EVIL
    shutil.copytree(root / "pear", evil)
    (evil / "result.json").unlink()
    config = (evil / "config.yaml").read_text().replace("name: fedproto", f"name: {EVIL}")
    (evil / "config.yaml").write_text(config)
    clients = json.loads((evil / "clients.json").read_text())
    clients["clients"][0]["name"] = EVIL[:40]
    (evil / "clients.json").write_text(json.dumps(clients))
    failure = {"round": 1, "client": f"{EVIL}7", "steps": [f"{EVIL}step"], "kind": "error", "message": f"{EVIL}why"}
    with (evil / "events.jsonl").open("a") as events:
        for event in ({**failure, "event": "failure"}, {"message": f"{EVIL}end", "event": "failed"}):
            events.write(json.dumps({"time": 1.0, **event}) + "\n")
    return root


@pytest.fixture(scope="session")
def address(runs: Path) -> Iterator[str]:
    """Start `polyfed ui` as a user does and return its address."""
    command = [sys.executable, "-m", "polyfed", "ui", str(runs), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()
        process.wait(timeout=200)


@contextmanager
def serving(root: Path, host: str = "127.0.0.1", **options: Any) -> Iterator[Dashboard]:
    """Serve a dashboard in this process."""
    page = open_dashboard(root, host, **options)
    thread = Thread(target=page.serve, daemon=True)
    thread.start()
    while not page.server.started:
        sleep(0.01)
    yield page
    page.server.should_exit = True
    thread.join(timeout=200)
    assert not thread.is_alive()


@pytest.fixture(scope="session")
def window() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    """Return the browser in its initial state, and fail if a test causes a console error."""
    window.size(1400, 900)
    window.dark(False)
    window.errors.clear()
    yield window
    window.js("1")  # receives pending messages
    assert window.errors == []


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder for screenshots, below `--basetemp`."""
    return tmp_path_factory.mktemp("screenshots")
