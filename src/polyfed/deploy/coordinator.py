"""A coordinator: its SuperLink on loopback, the gateway to the outside, and runs of experiments over the sites."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from polyfed.config import Config
from polyfed.deploy import site_registry
from polyfed.deploy.app_bundle import build_app
from polyfed.deploy.certificates import CertificateFolder, loopback_certificates
from polyfed.deploy.flower_protocol import SUPERLINK
from polyfed.deploy.folder_lock import exclusive
from polyfed.deploy.gateway import Gateway
from polyfed.deploy.processes import ChildProcess, flower_environment, free_port, is_listening, python_command
from polyfed.deploy.serverapp_task import ServerAppTask
from polyfed.deploy.site_run import run_over_sites
from polyfed.deploy.superlink_control import ControlClient
from polyfed.deploy.supernode_tasks import create_secret
from polyfed.errors import InputError, RunError
from polyfed.experiment import Observer
from polyfed.runs.folder import RunFolder
from polyfed.runs.records import Result, RoundRecord

START_SECONDS = 60.0
END_SECONDS = 2.0  # a SuperLink that is killed closes its connections before its process has ended
Notify = Callable[[str], None]


class _Progress:
    """An observer that counts the rounds since the SuperLink was started."""

    rounds = 0

    def started(self, config: Config, folder: Path, done: int) -> None: ...

    def round_done(self, record: RoundRecord) -> None:
        self.rounds += 1

    def note(self, sentence: str) -> None: ...


@dataclass
class Coordinator:
    """SuperLink and gateway, which stay up between runs. Use it in a `with` block, from the main thread.

    `home` is the folder of its certificates, its registry of sites, Flower's database and logs. `secure` turns on TLS
    and keys.
    """

    home: Path
    notify: Notify
    host: str = "127.0.0.1"
    port: int = 0
    secure: bool = True

    def __enter__(self) -> Coordinator:
        self._registry = site_registry.SiteRegistry(self.home)
        certificates = CertificateFolder(self.home) if self.secure else None
        if certificates is not None and not certificates.server.exists():
            raise InputError(
                f"{self.home} has no certificate; create one with: polyfed keys new authority --host HOST "
                f"--home {self.home}"
            )
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.home.chmod(0o700)  # the folder may have existed before, and Flower's database holds all payloads
        with contextlib.ExitStack() as stack:
            stack.enter_context(exclusive(self.home, "coordinator", "--home"))
            stack.callback(os.umask, os.umask(0o077))  # run folders hold uploads: only the owner reads them
            # bind the gateway first, so that an address in use is reported at once
            self._internal = self._internal_certificates()
            self._superlink_port = free_port()
            scheme = "http" if self._internal is None else "https"
            self.gateway = Gateway(
                self.host,
                self.port,
                f"{scheme}://{self.address}",
                certificate=None if certificates is None else certificates.server,
                key=None if certificates is None else certificates.server_key,
                authority=self._internal_authority,
                status_of_key=self._registry.status if self.secure else None,
                notify=self.notify,
            )
            self._start_superlink()
            stack.callback(lambda: self.superlink.stop())
            self.gateway.start()
            stack.callback(self.gateway.stop)
            if self.secure:
                with self.control() as control:
                    self._registry.apply(control)
                site_registry.publish_address(self.home, self.address)
                stack.callback(site_registry.withdraw_address, self.home)
            self._exit_stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()

    @property
    def address(self) -> str:
        """Address of the SuperLink, which only this machine can reach."""
        return f"127.0.0.1:{self._superlink_port}"

    def control(self) -> ControlClient:
        return ControlClient(self.address, self._internal_authority)

    @property
    def _internal_authority(self) -> Path | None:
        return None if self._internal is None else self._internal.authority

    def _internal_certificates(self) -> CertificateFolder | None:
        """Return the SuperLink's own certificates, which are new at every start. Only this process uses them."""
        if not self.secure:
            return None
        return loopback_certificates(site_registry.internal_folder(self.home))

    def _start_superlink(self) -> None:
        secret_file = self.home / "task-secret"
        self._secret = create_secret(secret_file)
        security = ["--insecure"]
        if self._internal is not None:
            security = [
                *("--ssl-certfile", str(self._internal.server), "--ssl-keyfile"),
                *(str(self._internal.server_key), "--ssl-ca-certfile", str(self._internal.authority)),
                "--enable-supernode-auth",
            ]
        command = [
            *python_command(*SUPERLINK),
            *("--host", "127.0.0.1", "--port", str(self._superlink_port), "--isolation", "process"),
            *("--superexec-auth-secret-file", str(secret_file), "--database", str(self.home / "superlink.db")),
            "--disable-runtime-dependency-installation",
            *security,
        ]
        environment = flower_environment(self.home / "flower")
        self.superlink = ChildProcess("the SuperLink", command, self.home / "superlink.log", environment)
        try:
            self.superlink.wait_until(lambda: is_listening("127.0.0.1", self._superlink_port), START_SECONDS)
        except BaseException:
            self.superlink.stop()
            raise

    # runs

    def run(self, config: Config, folder: RunFolder, observers: Sequence[Observer] = ()) -> Result:
        """Run an experiment over the sites, from the start or from its last checkpoint. Return its result.

        If the SuperLink ends, start it again and resume from the last checkpoint. Raise `RunError` if it ends again
        before a round has finished.
        """
        progress = _Progress()
        while True:
            try:
                return self._run(config, folder, [*observers, progress])
            except (RunError, httpx.HTTPError):
                code = self.superlink.wait(END_SECONDS)
                if code is None or not progress.rounds:
                    raise
                self.notify(f"the SuperLink ended with code {code}; starting it again")
                progress.rounds = 0
                self._start_superlink()

    def _run(self, config: Config, folder: RunFolder, observers: Sequence[Observer]) -> Result:
        with self.control() as control:
            control.stop_unfinished_runs()
            run_id = control.start_run(build_app())
        task = ServerAppTask(self.address, self._secret, self._internal_authority)
        with task.grid(run_id) as grid:
            name_of_key = self._name_of_key if self.secure else None
            return run_over_sites(
                grid,
                config,
                folder,
                name_of_key,
                self._check_superlink,
                self.notify,
                observers,
                self.gateway.traffic,
            )

    def _name_of_key(self, key: bytes) -> str | None:
        status, name = self._registry.status(key)
        return name if status == "admitted" else None

    def _check_superlink(self) -> None:
        if self.superlink.exit_code is not None:
            raise RunError(f"the SuperLink ended: {self.superlink.log_tail()}")
