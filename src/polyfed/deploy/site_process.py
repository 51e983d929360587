"""The process of a site: it runs a SuperNode on loopback, and answers the SuperNode's tasks itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from polyfed.deploy.certificates import loopback_certificates
from polyfed.deploy.flower_adapter import Message, RecordDict
from polyfed.deploy.flower_protocol import SUPERNODE
from polyfed.deploy.join_errors import admitted_name, check_server, explain_exit
from polyfed.deploy.messages import from_flower_message, to_record_dict
from polyfed.deploy.processes import ChildProcess, flower_environment, free_port, python_command
from polyfed.deploy.site import Site
from polyfed.deploy.supernode_tasks import TaskRunner, create_secret
from polyfed.errors import RunError
from polyfed.machine import keep_freed_memory

FIRST_RETRY_SECONDS, RETRY_SECONDS = 0.5, 5.0  # before a SuperNode is started again; the time doubles
STABLE_SECONDS = 30.0  # after which a SuperNode that ends was no failed attempt
Notify = Callable[[str], None]


@dataclass
class SiteProcess:
    """A SuperNode and the site that answers its tasks. Use it in a `with` block, from the main thread."""

    site: Site
    server: str  # host:port of the coordinator
    notify: Notify
    key: Path | None = None  # file of the site's private key; without key and authority there is no TLS
    authority: Path | None = None  # certificate file of the coordinator's authority
    port: int = 0  # of the SuperNode, on loopback; 0 picks a free one

    def __enter__(self) -> SiteProcess:
        folder = self.site.folder
        self._secret_file = folder / "task-secret"
        secret = create_secret(self._secret_file)
        self._internal = loopback_certificates(folder / ".internal")
        self._port = self.port or free_port()
        self._stop = threading.Event()
        keep_freed_memory()
        torch.set_num_threads(1)  # as in every engine: results must not depend on the number of cores
        self._supernode = self._start_supernode()
        address, authority = f"127.0.0.1:{self._port}", self._internal.authority
        runner = TaskRunner(address, secret, self._handle, self.notify, authority)
        threading.Thread(target=runner.run, args=(self._stop,), name="tasks", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._supernode.stop()

    def run_forever(self) -> None:
        """Run until a user interrupts. Raise `RunError` if the coordinator no longer admits this site."""
        wait, started = FIRST_RETRY_SECONDS, time.monotonic()
        while True:
            while (code := self._supernode.exit_code) is None:
                time.sleep(0.2)
            self.notify(explain_exit(code, self._supernode.log.read_text(errors="replace")))
            if time.monotonic() - started > STABLE_SECONDS:
                wait = FIRST_RETRY_SECONDS
            wait, started = self._wait_for_coordinator(wait), time.monotonic()
            self._supernode = self._start_supernode()

    def _wait_for_coordinator(self, wait: float) -> float:
        """Return when this site may connect again. Raise `RunError` if the coordinator refuses it.

        `wait` is the time before the first attempt. It doubles with every attempt; return the next one.
        """
        while True:
            time.sleep(wait)
            wait = min(2 * wait, RETRY_SECONDS)
            try:
                check_server(self.server, self.authority)
            except RunError as error:
                self.notify(f"{error}; trying again")
                continue
            if self.authority is not None and self.key is not None:
                admitted_name(self.server, self.authority, self.key)
            return wait

    def _start_supernode(self) -> ChildProcess:
        folder = self.site.folder
        security = ["--insecure"]
        if self.key is not None and self.authority is not None:
            security = ["--root-certificates", str(self.authority), "--auth-supernode-private-key", str(self.key)]
        command = [
            *python_command(*SUPERNODE),
            *("--superlink", self.server, "--host", "127.0.0.1", "--port", str(self._port)),
            *("--isolation", "process", "--superexec-auth-secret-file", str(self._secret_file)),
            *("--ssl-certfile", str(self._internal.server)),
            *("--ssl-keyfile", str(self._internal.server_key), "--ssl-ca-certfile", str(self._internal.authority)),
            *security,
        ]
        log = folder / "supernode.log"
        log.unlink(missing_ok=True)
        return ChildProcess("the SuperNode", command, log, flower_environment(folder / ".flower"))

    def _handle(self, message: Message) -> RecordDict:
        return to_record_dict(self.site.handle(from_flower_message(message)))
