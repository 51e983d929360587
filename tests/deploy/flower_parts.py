"""Processes of Flower for the tests of deployments, and an app that is not the installed one."""

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
from polyfed.deploy.certificates import CertificateFolder, create_authority, loopback_certificates
from polyfed.deploy.flower_adapter import Message, RecordDict
from polyfed.deploy.flower_protocol import SUPERLINK, SUPERNODE
from polyfed.deploy.processes import ChildProcess, flower_environment, free_port, is_listening, python_command
from polyfed.deploy.superlink_control import ControlClient


@dataclass(frozen=True)
class SuperLink:
    """A running SuperLink with TLS and keys."""

    address: str
    certificates: CertificateFolder
    child: ChildProcess

    def control(self) -> ControlClient:
        return ControlClient(self.address, self.certificates.authority)


def wait_until(ready: Callable[[], bool], timeout: float = 120) -> None:
    deadline = time.monotonic() + timeout
    while not ready():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def with_commands(environment: dict[str, str]) -> dict[str, str]:
    """Add Flower's commands to the search path, for processes of Flower that start apps."""
    return environment | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])}


@contextmanager
def run_superlink(folder: Path, *extra: str) -> Iterator[SuperLink]:
    """Run a SuperLink on loopback. It starts apps unless `extra` contains `--isolation process`."""
    certificates = create_authority(folder / "internal", [])
    port = free_port()
    command = [*python_command(*SUPERLINK), "--host", "127.0.0.1", "--port", str(port), "--enable-supernode-auth"]
    command += ["--ssl-certfile", str(certificates.server), "--ssl-keyfile", str(certificates.server_key)]
    command += ["--ssl-ca-certfile", str(certificates.authority), "--database", str(folder / "superlink.db")]
    environment = with_commands(flower_environment(folder / "flower"))
    child = ChildProcess("SuperLink", [*command, *extra], folder / "superlink.log", environment)
    try:
        child.wait_until(lambda: is_listening("127.0.0.1", port), 60)
        yield SuperLink(f"127.0.0.1:{port}", certificates, child)
    finally:
        child.stop()


@dataclass
class RunningSite:
    """A SuperNode and the thread that runs its tasks."""

    child: ChildProcess
    notices: list[str] = field(default_factory=list)


def start_supernode(folder: Path, server: str, ca: Path, key: Path, port: int, secret: Path) -> ChildProcess:
    command = [*python_command(*SUPERNODE), "--superlink", server, "--root-certificates", str(ca)]
    command += ["--auth-supernode-private-key", str(key), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    internal = loopback_certificates(folder / "internal")
    command += ["--ssl-certfile", str(internal.server), "--ssl-keyfile", str(internal.server_key)]
    command += ["--ssl-ca-certfile", str(internal.authority)]
    return ChildProcess("SuperNode", command, folder / "supernode.log", flower_environment(folder / "flower"))


@contextmanager
def run_site(
    folder: Path, server: str, ca: Path, key: Path, handler: Callable[[Message], RecordDict]
) -> Iterator[RunningSite]:
    """Run a site as `polyfed join` does, with `handler` in place of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    port, secret_file = free_port(), folder / "secret"
    secret = supernode_tasks.create_secret(secret_file)
    site = RunningSite(start_supernode(folder, server, ca, key, port, secret_file))
    stop = threading.Event()
    runner = supernode_tasks.TaskRunner(
        f"127.0.0.1:{port}", secret, handler, site.notices.append, folder / "internal" / "ca.crt"
    )
    thread = threading.Thread(target=runner.run, args=(stop,))
    thread.start()
    try:
        yield site
    finally:
        stop.set()
        thread.join()
        site.child.stop()


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
    replies = list(grid.send_and_receive(messages, timeout=400))
    answers = [(r.error.code, r.error.reason) if r.has_error() else "answered" for r in replies]
    temporary = Path(%(answers)r + ".new")
    temporary.write_text(json.dumps(answers))
    temporary.rename(%(answers)r)
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
    """Return an app with code of its own: its client writes a marker file, its server writes the answers it gets."""
    from tests.deploy.flower_names import build_fab_from_files

    files: dict[str, bytes | Path] = {
        "pyproject.toml": FOREIGN_PROJECT.encode(),
        "foreign/__init__.py": b"",
        "foreign/client.py": FOREIGN_CLIENT.encode(),
        "foreign/server.py": (FOREIGN_SERVER % {"answers": str(answers)}).encode(),
    }
    return build_fab_from_files(files)[0]
