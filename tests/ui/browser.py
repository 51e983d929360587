"""A real Chromium, controlled through its debugging socket: keys, pointer and console messages."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
KEYS = {
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    "Tab": (9, ""),
    " ": (32, " "),
    "ArrowDown": (40, ""),
    "ArrowUp": (38, ""),
    "ArrowLeft": (37, ""),
    "ArrowRight": (39, ""),
    "/": (191, "/"),
}


def chromium() -> str:
    """Return the path of Chromium. Tests fail without it."""
    named = os.environ.get("CHROMIUM")
    path = named or next((located for name in NAMES if (located := shutil.which(name))), None)
    if path is None:
        pytest.fail("no Chromium: install it (apt-get install chromium), or name it in CHROMIUM")
    return path


class Browser:
    """One browser window."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += [
            "--disable-background-networking",
            "--remote-debugging-port=0",
            f"--user-data-dir={self._profile.name}",
        ]
        self._process = subprocess.Popen(
            [chromium(), *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._open = contextlib.ExitStack()
        self.errors: list[str] = []
        self._number = 0
        self._loaded = False
        self._socket = self._connect()
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.size(1400, 900)

    def _connect(self) -> ClientConnection:
        place = Path(self._profile.name) / "DevToolsActivePort"
        until = time.monotonic() + 200
        while not (place.exists() and len(place.read_text().splitlines()) == 2):
            if self._process.poll() is not None or time.monotonic() > until:
                pytest.fail(f"Chromium did not start (exit code {self._process.poll()})")
            time.sleep(0.05)
        port, path = place.read_text().splitlines()
        connection = connect(f"ws://127.0.0.1:{port}{path}", max_size=None, open_timeout=200, proxy=None)
        return self._open.enter_context(connection)

    def close(self) -> None:
        self._call("Browser.close")
        self._open.close()
        self._process.wait(timeout=200)
        self._profile.cleanup()

    # the protocol

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=200))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self._handle(answer)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._call(method, self._session, **parameters)

    def _handle(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(parameters["exceptionDetails"])[:500])
            case "Log.entryAdded" if parameters["entry"]["level"] in {"error", "warning"}:
                self.errors.append(json.dumps(parameters["entry"])[:500])
            case "Runtime.consoleAPICalled" if parameters["type"] in {"error", "warning", "assert"}:
                self.errors.append(json.dumps(parameters["args"])[:500])
            case "Page.loadEventFired":
                self._loaded = True

    # user actions

    def goto(self, address: str) -> None:
        self._loaded = False
        self.call("Page.navigate", url="about:blank")  # a URL that differs in its fragment only would not be reloaded
        self.wait("document.readyState === 'complete' && location.href === 'about:blank'")
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def js(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 200) -> Any:
        """Wait until an expression is true. Fail with the text of the page after a timeout."""
        until = time.monotonic() + seconds
        while not (value := self.js(f"(() => {{ try {{ return {expression} }} catch {{ return null }} }})()")):
            if time.monotonic() > until:
                pytest.fail(f"never true: {expression}; the page shows: {self.text('body')[:3000]}")
            time.sleep(0.05)
        return value

    def text(self, selector: str) -> str:
        return str(self.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def click(self, selector: str) -> None:
        """Click the middle of an element with the pointer. Repeat this if the element has moved away meanwhile."""
        find = f"document.querySelector({json.dumps(selector)})"
        self.wait(f"{find} !== null")
        self.js("window.clicks = 0")
        for _ in range(20):
            self.js(f"{find}.addEventListener('click', () => window.clicks++, {{once: true, capture: true}})")
            self.js(f"{find}.scrollIntoView({{block: 'center', inline: 'center'}})")
            box = self.js(
                f"(() => {{ const b = {find}.getBoundingClientRect(); return [b.x, b.y, b.width, b.height] }})()"
            )
            place = {"x": box[0] + box[2] / 2, "y": box[1] + box[3] / 2}
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)
            if self.js("window.clicks ?? 1"):  # undefined: the click has opened another page
                return
        pytest.fail(f"{selector} cannot be clicked: something else is in front of it")

    def press(self, key: str) -> None:
        code, text = KEYS[key]
        facts = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **facts)
        self.call("Input.dispatchKeyEvent", type="keyUp", **facts)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def size(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, wanted: bool) -> None:
        value = "dark" if wanted else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def screenshot(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
