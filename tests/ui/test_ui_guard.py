"""Access control of the dashboard: host names, origins, tokens, and stopping runs."""

from __future__ import annotations

import http.client
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.ui.conftest import serving

from polyfed.errors import InputError, RunError
from polyfed.runs import lock_owner
from polyfed.runs.folder import RunFolder
from polyfed.ui.access_guard import is_loopback
from polyfed.ui.run_index import RunIndex
from polyfed.ui.server import NOT_LOGGED_IN, open_dashboard

Answer = tuple[int, str, dict[str, str]]


def ask(address: str, path: str, method: str = "GET", body: str | None = None, **headers: str) -> Answer:
    place = urlsplit(address)
    connection = http.client.HTTPConnection("127.0.0.1", place.port or 80, timeout=200)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    answer = connection.getresponse()
    response = answer.status, answer.read().decode(), {k.lower(): v for k, v in answer.getheaders()}
    connection.close()
    return response


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("guarded")
    folder = RunFolder(root / "run")
    folder.create({"name": "run", "method": {"name": "local"}, "rounds": 3})
    return root


@pytest.fixture(scope="module")
def page(place: Path) -> Iterator[str]:
    with serving(place) as served:
        yield served.address


def token_of(address: str) -> str:
    return address.split("?token=")[1]


def origin_of(address: str) -> str:
    return address.split("/?")[0]


def test_every_response_has_security_headers(page: str) -> None:
    for path in ("/", "/static/app.js", "/api/runs", "/nothing", "/static/../server.py"):
        status, _, headers = ask(page, path)
        assert status == (200 if path in {"/", "/static/app.js", "/api/runs"} else 404)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
        assert not any(name.startswith("access-control") for name in headers) and "server" not in headers


def test_other_host_names_are_rejected(page: str) -> None:
    port = urlsplit(page).port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1", f"127.0.0.1.evil:{port}", ""):
        assert ask(page, "/api/runs", Host=host)[0] in {400, 403}, host
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"):
        assert ask(page, "/api/runs", Host=host)[0] == 200


def test_other_websites_are_rejected(page: str) -> None:
    own = origin_of(page)
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": own + "0"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ):
        assert ask(page, "/api/runs", **headers)[0] == 403, headers
    assert ask(page, "/api/runs", Origin=own, Sec_Fetch_Site="same-origin")[0] == 200


def test_stopping_needs_the_token(page: str) -> None:
    token, body = token_of(page), json.dumps({"id": "run"})
    assert ask(page, "/api/stop", "POST", body)[0] == 403
    assert ask(page, "/api/stop", "POST", body, X_Polyfed_Token="é")[0] == 403
    assert ask(page, "/api/stop", "POST", body, X_Polyfed_Token=token, Origin="https://evil.example")[0] == 403
    assert ask(page, "/api/stop", "GET", X_Polyfed_Token=token)[0] == 405
    status, text, _ = ask(page, "/api/stop", "POST", body, X_Polyfed_Token=token, Origin=origin_of(page))
    assert (status, json.loads(text)) == (409, {"error": "no process is working on this run"})
    for wrong in ("", "[]", "x" * 70_000, "[" * 5000):
        assert ask(page, "/api/stop", "POST", wrong, X_Polyfed_Token=token)[0] == 404


def test_pages_without_the_token_can_only_read(page: str) -> None:
    token = token_of(page)
    status, text, _ = ask(page, "/")  # as another user of this machine opens it
    assert status == 200 and token not in text and NOT_LOGGED_IN in text
    status, _, headers = ask(page, f"/?token={token}")
    assert status == 303 and token in ask(page, "/", Cookie=headers["set-cookie"].split(";")[0])[1]
    assert "set-cookie" not in ask(page, "/?token=wrong")[2]


def test_names_cannot_leave_the_folder(page: str, place: Path) -> None:
    RunFolder(place.parent / "outside").create({"name": "secret"})
    for path in ("/api/config?id=../outside", "/api/config?id=/etc", "/api/rounds?id=run/..&have=x", "/api/config"):
        status, text, _ = ask(page, path)
        assert status == 404 and "there is no run" in json.loads(text)["error"]


def test_other_machines_need_the_token(place: Path) -> None:
    with serving(place, "0.0.0.0") as served:
        token = served.address.split("?token=")[1]
        assert len(token) >= 32
        for path in ("/", "/api/runs", "/static/app.js", "/?token=wrong", f"/api/runs?token={token}"):
            status, text, _ = ask(served.address, path)
            assert status == 401 and token not in text, path
        status, _, headers = ask(served.address, f"/?token={token}")
        cookie = headers["set-cookie"]
        assert status == 303 and headers["location"] == "/"
        assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
        given = cookie.split(";")[0]
        assert ask(served.address, "/api/runs", Cookie=given)[0] == 200
        assert ask(served.address, "/api/runs", Cookie=given + "x")[0] == 401
        assert (
            ask(served.address, "/api/stop", "POST", "{}", Cookie=given)[0] == 403
        )  # changes need the header, not only the cookie


def test_loopback_addresses() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.9.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "localhost.evil.example", "")))


def test_addresses_that_cannot_be_bound(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        open_dashboard(tmp_path / "nowhere")
    with serving(tmp_path) as served, pytest.raises(InputError, match="choose another --port"):
        open_dashboard(tmp_path, port=urlsplit(served.address).port or 0)
    with pytest.raises(InputError, match="choose another --port or --host"):
        open_dashboard(tmp_path, host="no.such.host.invalid")


# only the process that owns the run is asked to stop


def test_process_with_a_reused_number_is_not_signalled(place: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        impostor = lock_owner.LockOwner(other.pid, "1", platform.node(), True)  # another start time
        (place / "run" / ".lock").write_text(impostor.to_json())
        with pytest.raises(RunError, match="has ended"):
            RunIndex(place).stop("run")
        assert RunIndex(place).changes(0)["runs"][0]["state"] == "died"
        assert other.poll() is None
        other.kill()
    (place / "run" / ".lock").write_text("")


def test_owners_that_cannot_be_stopped(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.lock()
    mine = lock_owner.read(folder.lock_file)
    assert mine is not None and mine.pid == os.getpid() and mine.alive() and mine.stoppable
    folder.unlock()
    assert lock_owner.read(folder.lock_file) is None
    for other, words in (
        (lock_owner.LockOwner(mine.pid, mine.start_time, "elsewhere", True), "on elsewhere"),
        (lock_owner.LockOwner(mine.pid, mine.start_time, mine.host, False), "thread"),
        (lock_owner.LockOwner(2**22 + 1, mine.start_time, mine.host, True), "has ended"),
    ):
        with pytest.raises(RunError, match=words):
            other.stop(folder.lock_file)
    with pytest.raises(RunError, match="has ended"):
        mine.stop(folder.lock_file)  # alive, but it no longer holds the lock


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "3", '{"pid": 1}', '{"pid": -1, "began": "", "host": "", "listens": 1}']
)
def test_damaged_lock_files(tmp_path: Path, text: str) -> None:
    (tmp_path / ".lock").write_text(text)
    assert lock_owner.read(tmp_path / ".lock") is None
