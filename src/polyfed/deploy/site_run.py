"""A run over the sites of a grid: who they are, what they bring, and the experiment."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polyfed import trackers
from polyfed.config import Config, size_in_bytes
from polyfed.deploy.agreement import SITES
from polyfed.deploy.flower_adapter import Grid
from polyfed.deploy.offers import Offer, check_offer
from polyfed.deploy.remote_federation import RemoteFederation
from polyfed.deploy.site import public
from polyfed.deploy.site_link import GridLink
from polyfed.engines.flower import FlowerEngine, Parcel
from polyfed.errors import InputError
from polyfed.experiment import Experiment, Observer, versions
from polyfed.federation import simulation
from polyfed.federation.plan import Plan
from polyfed.federation.user_imports import import_user_modules
from polyfed.runs.atomic_files import write_atomically
from polyfed.runs.folder import RunFolder
from polyfed.runs.records import Result

TIMEOUT = 600.0  # seconds that a site may take for one call, unless the config says otherwise
RETURN_SECONDS = 60.0  # that a run which goes on waits for sites it knows; later they are taken back as they come
Say = Callable[[str], None]


def conduct(
    grid: Grid,
    config: Config,
    folder: RunFolder,
    name_of: Callable[[bytes], str | None] | None,
    check: Callable[[], None],
    say: Say,
    observers: Sequence[Observer] = (),
) -> Result:
    """Run an experiment over the sites, from the start or from its last checkpoint; gives its result.

    `name_of` gives the name of a site by its key, where keys are used; `check` raises when waiting is in vain.
    """
    done = folder.result()
    if done is not None:
        return done
    import_user_modules(config.imports)
    tracking = trackers.check(config.track)
    identity = Identity(folder, config)
    hello = Parcel({"do": "hello", "run": identity.run, "config": public(config.to_dict())})
    link = GridLink(grid, hello, name_of, checker(config), say, size_in_bytes(config.engine.message_limit))
    link.offers.update(identity.offers)
    gather(link, config, check, say)
    plan = plan_of(config, link.offers)
    engine = FlowerEngine(link, run=identity.run, timeout=config.engine.timeout or TIMEOUT)
    with trackers.tracked(config.track, tracking, say) as watchers:
        experiment = Experiment(plan, folder, [*observers, *watchers], engine)
        if not folder.exists():
            folder.create({**config.to_dict(), "name": config.run_name, "versions": versions()})
        identity.keep(link.offers)
        return experiment.run()


def gather(link: GridLink, config: Config, check: Callable[[], None], say: Say) -> None:
    """Wait until every site has said what it brings.

    A run that goes on has their words from before: then it waits a while for all, and goes on with those who came.
    """
    said = ""
    patience = time.monotonic() + RETURN_SECONDS
    while True:
        online = link.online()
        absent = [name for name in config.client_names if name not in online]
        unknown = [name for name in absent if name not in link.offers]
        if not absent or (online and not unknown and time.monotonic() > patience):
            return
        waiting = f"waiting for {', '.join(absent)}"
        if waiting != said:
            said = waiting
            say(waiting)
        check()
        time.sleep(0.2)


class Identity:
    """What a run is called between coordinator and sites, and what they offered; kept with the run."""

    def __init__(self, folder: RunFolder, config: Config) -> None:
        self._file = folder.path / "sites.json"
        self.offers: dict[str, dict[str, Any]] = {}
        plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in config.run_name)
        self.run = f"{plain.lstrip('._-')[:80] or 'run'}-{secrets.token_hex(6)}"
        with contextlib.suppress(FileNotFoundError):
            kept = json.loads(self._file.read_text())
            self.run, self.offers = kept["run"], kept["offers"]

    def keep(self, offers: Mapping[str, dict[str, Any]]) -> None:
        write_atomically(self._file, json.dumps({"run": self.run, "offers": dict(offers)}).encode())


def checker(config: Config) -> Callable[[str, dict[str, Any]], None]:
    """What looks at the offer of a site, by its name; raises an InputError where it cannot take part."""

    def check(name: str, entries: dict[str, Any]) -> None:
        if name not in config.client_names:
            raise InputError(f"it is not one of this run's: {', '.join(config.client_names)}")
        offer = Offer.from_json(entries)
        if config.data.dataset == SITES:
            check_offer(config, offer)

    return check


def plan_of(config: Config, offers: Mapping[str, dict[str, Any]]) -> Plan:
    """The federation as the coordinator sees it. A rehearsal shares out a dataset that everybody can load."""
    if config.data.dataset != SITES:
        return simulation.build_federation(config)
    return RemoteFederation(config, {name: Offer.from_json(offer) for name, offer in offers.items()})
