"""A coordinator: its SuperLink on loopback, the gateway to the outside, and runs of experiments over the sites."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyfed.config import Config
from polyfed.deploy import site_registry
from polyfed.deploy.app_bundle import bundle
from polyfed.deploy.control import Control
from polyfed.deploy.flower_protocol import SUPERLINK
from polyfed.deploy.gateway import Gateway
from polyfed.deploy.keys import Authority, internal_authority
from polyfed.deploy.processes import Child, free_port, listens, program, quiet
from polyfed.deploy.serverapp_task import ServerTask
from polyfed.deploy.site_run import conduct
from polyfed.deploy.supernode_tasks import new_secret
from polyfed.errors import InputError, RunError
from polyfed.experiment import Observer
from polyfed.runs.folder import RunFolder
from polyfed.runs.records import Result

START_SECONDS = 60.0
Say = Callable[[str], None]


@dataclass
class Coordinator:
    """What stays up between runs. Used in a `with` block, from the main thread.

    `home` holds its certificates, its list of sites, Flower's database and logs. `secure` is TLS and keys.
    """

    home: Path
    say: Say
    host: str = "127.0.0.1"
    port: int = 0
    secure: bool = True

    def __enter__(self) -> Coordinator:
        self._registry = site_registry.Registry(self.home)
        self._door = Authority(self.home) if self.secure else None
        if self._door is not None and not self._door.server_certificate.exists():
            raise InputError(
                f"{self.home} has no certificate; make one with: polyfed keys new authority --host HOST "
                f"--home {self.home}"
            )
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.home.chmod(0o700)  # also where somebody made it before: Flower's database holds all payloads
        with contextlib.ExitStack() as begun:
            # first the way out, so that an address that is taken is said at once
            self._inside = self._internal()
            self._port = free_port()
            scheme = "http" if self._inside is None else "https"
            self.gateway = Gateway(
                self.host,
                self.port,
                f"{scheme}://{self.address}",
                certificate=None if self._door is None else self._door.server_certificate,
                key=None if self._door is None else self._door.server_key,
                authority=None if self._inside is None else self._inside.certificate,
                standing=self._registry.standing if self.secure else None,
                say=self.say,
            )
            self._start_superlink()
            begun.callback(self.superlink.stop)
            self.gateway.start()
            begun.callback(self.gateway.stop)
            if self.secure:
                with self.control() as control:
                    self._registry.apply(control)
                site_registry.announce(self.home, self.address)
                begun.callback(site_registry.retire, self.home)
            self._ending = begun.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    @property
    def address(self) -> str:
        """Of the SuperLink, which only this machine reaches."""
        return f"127.0.0.1:{self._port}"

    def control(self) -> Control:
        return Control(self.address, None if self._inside is None else self._inside.certificate)

    def _internal(self) -> Authority | None:
        """The SuperLink's own certificate, made anew for every start: nobody but this process needs to know it."""
        if not self.secure:
            return None
        return internal_authority(site_registry.internal(self.home))

    def _start_superlink(self) -> None:
        secret = self.home / "task-secret"
        self._secret = new_secret(secret)
        security = ["--insecure"]
        if self._inside is not None:
            security = [
                *("--ssl-certfile", str(self._inside.server_certificate), "--ssl-keyfile"),
                *(str(self._inside.server_key), "--ssl-ca-certfile", str(self._inside.certificate)),
                "--enable-supernode-auth",
            ]
        command = [
            *program(*SUPERLINK),
            *("--host", "127.0.0.1", "--port", str(self._port), "--isolation", "process"),
            *("--superexec-auth-secret-file", str(secret), "--database", str(self.home / "superlink.db")),
            "--disable-runtime-dependency-installation",
            *security,
        ]
        self.superlink = Child("the SuperLink", command, self.home / "superlink.log", quiet(self.home / "flower"))
        try:
            self.superlink.wait_until(lambda: listens("127.0.0.1", self._port), START_SECONDS)
        except BaseException:
            self.superlink.stop()
            raise

    # runs

    def run(self, config: Config, folder: RunFolder, observers: Sequence[Observer] = ()) -> Result:
        """An experiment over the sites, from the start or from its last checkpoint, to its result."""
        with self.control() as control:
            number = control.start_run(bundle())
        task = ServerTask(self.address, self._secret, None if self._inside is None else self._inside.certificate)
        with task.grid(number) as grid:
            return conduct(
                grid, config, folder, self._name_of if self.secure else None, self._check, self.say, observers
            )

    def _name_of(self, key: bytes) -> str | None:
        standing, name = self._registry.standing(key)
        return name if standing == "admitted" else None

    def _check(self) -> None:
        if self.superlink.ended is not None:
            raise RunError(f"the SuperLink ended: {self.superlink.last_words()}")
