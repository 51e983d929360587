"""Server-sent events of the dashboard: changes, heartbeats, limits, shutdown, and pages without a stream."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.ui.browser import Browser
from tests.ui.conftest import serving
from tests.ui.test_ui_guard import ask
from tests.ui.test_ui_page import row
from tests.ui.test_ui_reading import STARTED, append, done, run_folder

from polyfed.ui.event_stream import EventStreams
from polyfed.ui.run_index import RunIndex


@contextmanager
def stream(address: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(address).port or 80, timeout=200)
    connection.request("GET", "/api/stream", headers=headers)
    response = connection.getresponse()
    yield response
    response.close()
    connection.close()


def changes(response: http.client.HTTPResponse) -> tuple[int, dict[str, Any]]:
    """Return the id and the data of the next `changes` event."""
    while True:
        lines = []
        while line := response.readline().decode().strip("\n"):
            lines.append(line)
        assert lines, "the stream has ended"
        fields = dict(line.split(": ", 1) for line in lines)
        if fields.get("event") == "changes":
            return int(fields["id"]), json.loads(fields["data"])


def test_changes_are_sent_as_they_happen(tmp_path: Path) -> None:
    path = run_folder(tmp_path / "run", STARTED)
    with serving(tmp_path) as page:
        with stream(page.address) as response:
            assert response.status == 200 and response.headers["content-type"].startswith("text/event-stream")
            assert "default-src 'none'" in response.headers["content-security-policy"]
            assert response.readline() == b"retry: 2000\n" and response.readline() == b"\n"
            number, first = changes(response)
            assert first["full"] and [run["id"] for run in first["runs"]] == ["run"]
            append(path, done(1))
            number, second = changes(response)
            assert not second["full"] and second["runs"][0]["done"] == 1
        append(path, done(2))
        # a browser that connects again receives what it has missed, and nothing else
        with stream(page.address, **{"Last-Event-ID": str(number)}) as response:
            _, third = changes(response)
            assert not third["full"] and third["runs"][0]["done"] == 2


def test_heartbeats_follow_a_silence_and_streams_end_with_the_server(tmp_path: Path) -> None:
    run_folder(tmp_path / "run", STARTED)
    streams = EventStreams(RunIndex(tmp_path), heartbeat=0.0)

    async def collect() -> list[str]:
        events = []
        async for event in streams.events(0):
            events.append(event)
            if event.startswith("event: heartbeat"):
                streams.closing = lambda: True
        return events

    events = asyncio.run(collect())
    assert [event.split("\n")[0].split(":")[0] for event in events] == ["retry", "id", "event"]


def test_the_number_of_streams_is_limited(tmp_path: Path) -> None:
    with serving(tmp_path, max_streams=2) as page:
        with ExitStack() as opened:
            for _ in range(2):
                assert opened.enter_context(stream(page.address)).status == 200
            status, text, headers = ask(page.address, "/api/stream")
            assert status == 503 and "2 pages" in text and "content-security-policy" in headers
            assert ask(page.address, "/api/runs")[0] == 200
        for _ in range(200):  # the places of closed streams become free
            with stream(page.address) as response:
                if response.status == 200:
                    break
        assert response.status == 200


def test_open_streams_do_not_delay_the_end_of_the_server(tmp_path: Path) -> None:
    with ExitStack() as opened:
        with serving(tmp_path) as page:
            response = opened.enter_context(stream(page.address))
            changes(response)
        rest = response.read()  # `serving` has seen the server end
        assert b"event: changes" not in rest


def test_other_websites_cannot_open_a_stream(tmp_path: Path) -> None:
    with serving(tmp_path) as page:
        for headers in (
            {"Origin": "https://evil.example"},
            {"Sec_Fetch_Site": "cross-site"},
            {"Host": "evil.example"},
        ):
            assert ask(page.address, "/api/stream", **headers)[0] == 403
        assert ask(page.address, "/api/stream", "POST")[0] == 403
    with serving(tmp_path, "0.0.0.0") as page:
        assert ask(page.address, "/api/stream")[0] == 401


def test_page_polls_if_there_is_no_stream(browser: Browser, tmp_path: Path) -> None:
    path = run_folder(tmp_path / "run", STARTED, done(1))
    shown = f"document.querySelector({json.dumps(row('run'))})?.innerText"
    with serving(tmp_path, max_streams=0) as page:
        browser.goto(page.address)
        browser.wait("document.querySelector('#connection').className === 'poll'")
        append(path, done(2))
        browser.size(1700, 900)
        browser.wait(f"{shown}.includes('2/9')")
        browser.goto("about:blank#")
    assert all("503" in error for error in browser.errors) and browser.errors  # the stream that was refused
    browser.errors.clear()


def test_page_uses_a_stream(browser: Browser, tmp_path: Path) -> None:
    path = run_folder(tmp_path / "run", STARTED, done(1))
    shown = f"document.querySelector({json.dumps(row('run'))})?.innerText"
    with serving(tmp_path) as page:
        browser.goto(page.address)
        browser.size(1700, 900)
        browser.wait("document.querySelector('#connection').className === 'stream'")
        append(path, done(2))
        browser.wait(f"{shown}.includes('2/9')")
        requests = "performance.getEntriesByType('resource').filter((e) => e.name.includes('/api/runs')).length"
        assert browser.js(requests) == 0
        browser.goto("about:blank#")
