"""Real parts for the tests of deployments: a SuperLink, SuperNodes, and an app that nobody installed."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from polyfed.deploy import supernode_tasks
from polyfed.deploy.control import Control
from polyfed.deploy.flower_adapter import Message, RecordDict
from polyfed.deploy.flower_protocol import SUPERLINK, SUPERNODE
from polyfed.deploy.keys import Authority, internal_authority, new_authority
from polyfed.deploy.processes import Child, free_port, listens, program, quiet


@dataclass(frozen=True)
class Link:
    """A SuperLink that runs, with TLS and keys on."""

    address: str
    authority: Authority
    child: Child

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def control(self) -> Control:
        return Control(self.address, self.authority.certificate)


def until(true: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


def with_commands(environment: dict[str, str]) -> dict[str, str]:
    """For processes that run apps by themselves: they look for Flower's other commands on the search path."""
    return environment | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])}


@contextmanager
def superlink(folder: Path, *extra: str) -> Iterator[Link]:
    """A SuperLink on loopback; it runs apps by itself unless `--isolation process` is among `extra`."""
    authority = new_authority(folder / "internal", [])
    port = free_port()
    command = [*program(*SUPERLINK), "--host", "127.0.0.1", "--port", str(port), "--enable-supernode-auth"]
    command += ["--ssl-certfile", str(authority.server_certificate), "--ssl-keyfile", str(authority.server_key)]
    command += ["--ssl-ca-certfile", str(authority.certificate), "--database", str(folder / "superlink.db")]
    environment = with_commands(quiet(folder / "flower"))
    child = Child("SuperLink", [*command, *extra], folder / "superlink.log", environment)
    try:
        child.wait_until(lambda: listens("127.0.0.1", port), 60)
        yield Link(f"127.0.0.1:{port}", authority, child)
    finally:
        child.stop()


@dataclass
class Site:
    """A SuperNode and the thread that takes its tasks."""

    child: Child
    refusals: list[str] = field(default_factory=list)


def supernode(folder: Path, server: str, ca: Path, key: Path, port: int, secret: Path) -> Child:
    command = [*program(*SUPERNODE), "--superlink", server, "--root-certificates", str(ca)]
    command += ["--auth-supernode-private-key", str(key), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    inside = internal_authority(folder / "inside")
    command += ["--ssl-certfile", str(inside.server_certificate), "--ssl-keyfile", str(inside.server_key)]
    command += ["--ssl-ca-certfile", str(inside.certificate)]
    return Child("SuperNode", command, folder / "supernode.log", quiet(folder / "flower"))


@contextmanager
def site(folder: Path, server: str, ca: Path, key: Path, handle: Callable[[Message], RecordDict]) -> Iterator[Site]:
    """A site as `polyfed join` makes it, with `handle` in the place of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    port, secret = free_port(), folder / "secret"
    taken = supernode_tasks.new_secret(secret)
    one = Site(supernode(folder, server, ca, key, port, secret))
    stop = threading.Event()
    taker = supernode_tasks.Taker(
        f"127.0.0.1:{port}", taken, handle, one.refusals.append, folder / "inside" / "ca.crt"
    )
    thread = threading.Thread(target=taker.run, args=(stop,))
    thread.start()
    try:
        yield one
    finally:
        stop.set()
        thread.join()
        one.child.stop()


FOREIGN_PROJECT = """\
[project]
name = "foreign"
version = "1.0.0"
description = "x"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "stranger"

[tool.flwr.app.components]
serverapp = "foreign.server:app"
clientapp = "foreign.client:app"

[tool.flwr.app.config]
"""
FOREIGN_SERVER = """\
import json
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    nodes = list(grid.get_node_ids())
    content = RecordDict({"what": ConfigRecord({"x": 1})})
    messages = [Message(content=content, dst_node_id=n, message_type="query") for n in nodes]
    replies = list(grid.send_and_receive(messages, timeout=60))
    got = [(r.error.code, r.error.reason) if r.has_error() else "answered" for r in replies]
    beside = Path(%(answers)r + ".new")
    beside.write_text(json.dumps(got))
    beside.rename(%(answers)r)
"""
FOREIGN_CLIENT = """\
import os
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

marker = Path(os.environ["FLWR_HOME"], "marker")
marker.write_text("loaded")
app = ClientApp()

@app.query()
def query(message, context):
    marker.write_text("ran")
    return Message(RecordDict({"what": ConfigRecord({"x": 2})}), reply_to=message)
"""


def foreign_app(answers: Path) -> bytes:
    """An app with code of its own: its client leaves a mark where it runs, its server writes what it was answered."""
    from tests.deploy.flower_names import build_fab_from_files

    files: dict[str, bytes | Path] = {
        "pyproject.toml": FOREIGN_PROJECT.encode(),
        "foreign/__init__.py": b"",
        "foreign/client.py": FOREIGN_CLIENT.encode(),
        "foreign/server.py": (FOREIGN_SERVER % {"answers": str(answers)}).encode(),
    }
    return build_fab_from_files(files)[0]
