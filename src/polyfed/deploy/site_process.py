"""A site's process: its SuperNode on loopback, whose tasks it takes and answers itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from polyfed.config import Config
from polyfed.core.host import ClientMaker
from polyfed.deploy.agreement import SITES
from polyfed.deploy.flower_adapter import Message, RecordDict
from polyfed.deploy.flower_protocol import SUPERNODE
from polyfed.deploy.join_errors import check_server, explain, standing
from polyfed.deploy.keys import internal_authority
from polyfed.deploy.messages import from_message, to_record
from polyfed.deploy.offers import Offer
from polyfed.deploy.processes import Child, free_port, program, quiet
from polyfed.deploy.site import Bring, Site
from polyfed.deploy.site_federation import load_site
from polyfed.deploy.supernode_tasks import Taker, new_secret
from polyfed.errors import InputError, RunError
from polyfed.federation import simulation

AGAIN_SECONDS = 5.0  # between two tries to reach a coordinator that is away
Say = Callable[[str], None]


@dataclass
class Node:
    """A SuperNode and the site behind it. Used in a `with` block, from the main thread."""

    site: Site
    server: str  # host:port of the coordinator
    say: Say
    key: Path | None = None  # the site's private key, and the authority of the coordinator; none: without TLS
    authority: Path | None = None
    port: int = 0  # of the SuperNode, on loopback; 0: any

    def __enter__(self) -> Node:
        folder = self.site.folder
        self._secret = new_secret(folder / "task-secret")
        self._inside = internal_authority(folder / ".internal")
        self._port = self.port or free_port()
        self._stop = threading.Event()
        torch.set_num_threads(1)  # as in every engine: results must not depend on the number of cores
        self._supernode = self._start()
        taker = Taker(f"127.0.0.1:{self._port}", self._secret, self._handle, self.say, self._inside.certificate)
        threading.Thread(target=taker.run, args=(self._stop,), name="tasks", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._supernode.stop()

    def stay(self) -> None:
        """Until somebody interrupts, or the coordinator does not want this site any more."""
        while True:
            while (code := self._supernode.ended) is None:
                time.sleep(0.2)
            self.say(explain(code, self._supernode.log.read_text(errors="replace")))
            self._wait_for_coordinator()
            self._supernode = self._start()

    def _wait_for_coordinator(self) -> None:
        """Return when this site may try again. One that was sent away ends with the reason."""
        while True:
            time.sleep(AGAIN_SECONDS)
            try:
                check_server(self.server, self.authority)
            except RunError as error:
                self.say(f"{error}; trying again")
                continue
            if self.authority is not None and self.key is not None:
                standing(self.server, self.authority, self.key)
            return

    def _start(self) -> Child:
        folder = self.site.folder
        security = ["--insecure"]
        if self.key is not None and self.authority is not None:
            security = ["--root-certificates", str(self.authority), "--auth-supernode-private-key", str(self.key)]
        command = [
            *program(*SUPERNODE),
            *("--superlink", self.server, "--host", "127.0.0.1", "--port", str(self._port)),
            *("--isolation", "process", "--superexec-auth-secret-file", str(folder / "task-secret")),
            *("--ssl-certfile", str(self._inside.server_certificate)),
            *("--ssl-keyfile", str(self._inside.server_key), "--ssl-ca-certfile", str(self._inside.certificate)),
            *security,
        ]
        log = folder / "supernode.log"
        log.unlink(missing_ok=True)
        return Child("the SuperNode", command, log, quiet(folder / ".flower"))

    def _handle(self, message: Message) -> RecordDict:
        return to_record(self.site.handle(from_message(message)))


def own(name: str, data: Path, model: str, state: Path) -> Bring:
    """A site with its own data and model. What is made of the data is kept in its own folder `state`."""

    def bring(config: Config) -> tuple[ClientMaker, Offer]:
        if config.data.dataset != SITES:
            raise InputError(
                f"the run shares out the dataset {config.data.dataset}, which only sites in rehearsal take part in; "
                "this site brings data of its own"
            )
        made = load_site(config, name, data, model, cache=state / ".data")
        return made, made.offer()

    return bring


def rehearsal(name: str) -> Bring:
    """A site that takes its share of the config's dataset and the model that the config gives it."""

    def bring(config: Config) -> tuple[ClientMaker, Offer]:
        if config.data.dataset == SITES:
            raise InputError(
                "the run is over sites' own data; this site rehearses, and would need --data and --model"
            )
        made = simulation.build_federation(config)
        if name not in made.positions:
            raise InputError(f"site {name} is not one of this run's: {', '.join(made.names)}")
        k = made.positions[name]
        return made, Offer(made.profile(k), f"share {k} of {made.source}", {})

    return bring
