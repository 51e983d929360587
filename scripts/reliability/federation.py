"""A federation of real processes on this machine whose parts can be killed and started again."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from tests import warm_processes
from tests.deploy.direct_link import OWN_SETTING, DirectLink, make_sites, own_data, run_over
from tests.deploy.polyfed_processes import events, make_consortium

from polyfed.deploy.processes import free_port, is_listening
from polyfed.deploy.site_setup import own_data_setup

WAIT_SECONDS = 900.0
SETTING: dict[str, Any] = {
    **OWN_SETTING,
    "evaluate": {"personal": False, "global": False},
    "checkpoint": {"seconds": 0.0},
    "engine": {"timeout": 100.0},
    "failures": {"min_replies": 1},
}


class Federation:
    """A coordinator and sites with their own data, with or without keys and TLS. One run follows the other."""

    def __init__(self, folder: Path, names: Sequence[str], *, keys: bool = True) -> None:
        self.folder, self.names, self._keys = folder, list(names), keys
        self._consortium = make_consortium(folder, *names)
        self.port = free_port()
        self._data = {name: own_data(folder / f"data-{name}", k) for k, name in enumerate(names)}
        self._settings: dict[str, Any] = {}
        self.run = folder
        self.sites: dict[str, warm_processes.Process] = {}

    def next_run(self, name: str, rounds: int) -> int:
        """Start the coordinator of a new run, and the sites if they do not run. Return 0, the rounds done so far."""
        self.run = self.folder / name
        self._settings = {**SETTING, "name": name, "rounds": rounds}
        self._settings |= {"names": self.names, "clients": len(self.names)}
        (self.folder / "config.yaml").write_text(yaml.safe_dump(self._settings))
        self.start_coordinator()
        if not self.sites:
            self.wait(lambda: is_listening("127.0.0.1", self.port), "the gateway")
            for site in self.names:
                self.start_site(site)
        return 0

    def start_coordinator(self) -> None:
        options = ("--home", str(self._consortium.home), "--host", "127.0.0.1", "--port", str(self.port))
        security = () if self._keys else ("--insecure",)
        config = str(self.folder / "config.yaml")
        self.coordinator = self._start("serve", config, "--out", str(self.run), *options, *security)

    def start_site(self, name: str) -> None:
        credentials: tuple[str, ...] = ("--insecure", "--name", name)
        if self._keys:
            authority = str(self._consortium.home / "ca.crt")
            credentials = ("--key", str(self.folder / f"{name}.key"), "--ca", authority)
        server = ("--server", f"127.0.0.1:{self.port}", *credentials, "--state", str(self.folder / name))
        data = ("--data", str(self._data[name]), "--model", "tiny-mlp")
        self.sites[name] = self._start("join", *server, *data)

    def _start(self, command: str, *arguments: str) -> warm_processes.Process:
        with (self.folder / f"{command}.log").open("ab") as log:
            return warm_processes.Process(
                "-m", "polyfed", command, *arguments, stdout=log, stderr=log, new_session=True
            )

    def stop(self) -> None:
        running = [self.coordinator, *self.sites.values()]
        for process in running:
            process.terminate()
        for process in running:
            with contextlib.suppress(Exception):
                process.wait(30)
            process.kill()

    # progress

    def rounds(self) -> int:
        """Return the number of rounds that the run has finished, repeated ones included."""
        return sum(event.get("event") == "round" for event in read_events(self.run))

    def calls_of(self, name: str) -> int:
        """Return the number of calls that a site has answered in this run."""
        folders = self.folder.joinpath(name).glob(f"{self.run.name}-*")
        found = [event for folder in folders for event in read_events(folder)]
        return sum(event.get("event") == "left" and event["round"] > 0 for event in found)

    def wait_for_rounds(self, count: int) -> float:
        """Wait until this many rounds have finished, or the run. Return the seconds that it took."""
        return self.wait(lambda: self.rounds() >= count, f"round {count}")

    def finished(self) -> bool:
        return (self.run / "result.json").exists()

    def keep_running(self) -> None:
        """Start processes that have ended again, as a service manager does."""
        if self.coordinator.poll() is not None and not self.finished():
            self.start_coordinator()
        for name in [name for name, site in self.sites.items() if site.poll() is not None]:
            self.start_site(name)

    def wait(self, ready: Callable[[], bool], goal: str) -> float:
        """Wait until `ready` returns true or the run has finished. Return the seconds that it took."""
        start = time.monotonic()
        while not ready() and not self.finished():
            self.keep_running()
            if time.monotonic() - start > WAIT_SECONDS:
                raise TimeoutError(f"waited {WAIT_SECONDS:g} s for {goal}; see {self.folder}")
            time.sleep(0.1)
        return time.monotonic() - start

    def finish(self, watch: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Wait for the end of the run. Return its failures, and whether the result has the expected bits."""

        def watched() -> bool:
            watch()
            return self.finished()

        self.wait(watched, "the end of the run")
        self.coordinator.wait(60)
        result = json.loads((self.run / "result.json").read_text())
        failures = [(failure["round"], failure["client"]) for failure in result["failures"]]
        return {"failures": len(failures), "equal": result["state_hash"] == self._expected_hash(failures)}

    def _expected_hash(self, failures: list[tuple[int, str]]) -> str:
        """Return the state hash of the same run without processes, in which the same sites miss the same rounds."""
        absent: dict[int, set[str]] = defaultdict(set)
        for round, name in failures:
            absent[round].add(name)

        class WithAbsentSites(DirectLink):
            calls = 0  # one in each round

            def online(self) -> frozenset[str]:
                self.calls += 1
                return super().online() - absent[self.calls]

        direct = self.folder / f"direct-{self.run.name}"
        setups = {}
        for name in self.names:
            folder = direct / name
            folder.mkdir(parents=True)
            shutil.copy(self.folder / name / "privacy.secret", folder)  # digests of states depend on it
            setups[name] = own_data_setup(name, self._data[name], "tiny-mlp", folder)
        link = WithAbsentSites(make_sites(direct, setups).sites)
        return str(run_over(link, self._settings, direct / "run")["state_hash"])


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Return the events of a run folder. An incomplete last line is left out."""
    with contextlib.suppress(json.JSONDecodeError):
        return events(folder)
    lines = (folder / "events.jsonl").read_text(errors="replace").splitlines()
    complete = []
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):
            complete.append(json.loads(line))
    return complete


@contextlib.contextmanager
def run_federation(folder: Path, names: Sequence[str], *, keys: bool = True) -> Iterator[Federation]:
    """Yield a federation whose first run has not started. Stop its processes afterwards."""
    federation = Federation(folder, names, keys=keys)
    try:
        yield federation
    finally:
        federation.stop()
