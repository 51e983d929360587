"""A run over the sites of a grid: wait for the sites, collect their offers, and run the experiment."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polyfed import trackers
from polyfed.config import Config, size_in_bytes
from polyfed.config.code_digest import code_digests
from polyfed.deploy.agreement import SITES
from polyfed.deploy.flower_adapter import Grid
from polyfed.deploy.offers import Offer, check_offer
from polyfed.deploy.remote_federation import RemoteFederation
from polyfed.deploy.site_config import public_config
from polyfed.deploy.site_link import GridLink, Presence
from polyfed.engines.flower import FlowerEngine, SiteMessage
from polyfed.errors import InputError
from polyfed.experiment import Experiment, Observer, versions
from polyfed.federation import simulation
from polyfed.federation.server_federation import ServerFederation
from polyfed.federation.user_imports import import_user_modules
from polyfed.machine import keep_freed_memory
from polyfed.runs.atomic_files import write_atomically
from polyfed.runs.folder import RunFolder
from polyfed.runs.records import Result

TIMEOUT = 600.0  # seconds that a site may take for one call, unless the config says otherwise
RETURN_SECONDS = 60.0  # that a resumed run waits for its sites; those that come later take part from then on
Notify = Callable[[str], None]


def run_over_sites(
    grid: Grid,
    config: Config,
    folder: RunFolder,
    name_of_key: Callable[[bytes], str | None] | None,
    check_alive: Callable[[], None],
    notify: Notify,
    observers: Sequence[Observer] = (),
    presence: Presence | None = None,
) -> Result:
    """Run an experiment over the sites, from the start or from its last checkpoint. Return its result.

    `name_of_key` returns the site name of a key, or is None if sites have no keys. `check_alive` raises `RunError` if
    the SuperLink has ended. `presence` tells which sites still send requests.
    """
    result = folder.result()
    if result is not None:
        return result
    import_user_modules(config.imports)
    tracking = trackers.create_trackers(config.track)
    record = SitesRecord(folder, config)
    handshake = SiteMessage({"do": "hello", "run": record.run, "config": public_config(config.to_dict())})
    limit = size_in_bytes(config.engine.message_limit)
    check = offer_checker(config)
    link = GridLink(grid, handshake, name_of_key, check, notify, limit, presence, check_alive)
    link.offers.update(record.offers)
    wait_for_sites(link, config, check_alive, notify)
    plan = plan_from_offers(config, link.offers)
    engine = FlowerEngine(link, run=record.run, timeout=config.engine.timeout or TIMEOUT)
    with trackers.track_run(config.track, tracking, notify) as watchers:
        keep_freed_memory()
        experiment = Experiment(plan, folder, [*observers, *watchers], engine)
        if not folder.exists():
            made_with = {**versions(), "code": code_digests(config)}
            folder.create({**config.to_dict(), "name": config.run_name, "versions": made_with})
        record.save(link.offers)
        return experiment.run()


def wait_for_sites(link: GridLink, config: Config, check_alive: Callable[[], None], notify: Notify) -> None:
    """Wait until every site has sent its offer.

    A resumed run has the offers already. It waits for all sites for a while, and continues with those that came.
    """
    notified = ""
    deadline = time.monotonic() + RETURN_SECONDS
    while True:
        online = link.online()
        absent = [name for name in config.client_names if name not in online]
        unknown = [name for name in absent if name not in link.offers]
        if not absent or (online and not unknown and time.monotonic() > deadline):
            return
        notice = f"waiting for {', '.join(absent)}"
        if notice != notified:
            notified = notice
            notify(notice)
        check_alive()
        time.sleep(0.5)


class SitesRecord:
    """The file sites.json of a run folder: the run's name between coordinator and sites, and the sites' offers."""

    def __init__(self, folder: RunFolder, config: Config) -> None:
        self._file = folder.path / "sites.json"
        self.offers: dict[str, dict[str, Any]] = {}
        plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in config.run_name)
        self.run = f"{plain.lstrip('._-')[:80] or 'run'}-{secrets.token_hex(6)}"
        with contextlib.suppress(FileNotFoundError):
            content = json.loads(self._file.read_text())
            self.run, self.offers = content["run"], content["offers"]

    def save(self, offers: Mapping[str, dict[str, Any]]) -> None:
        write_atomically(self._file, json.dumps({"run": self.run, "offers": dict(offers)}).encode())


def offer_checker(config: Config) -> Callable[[str, dict[str, Any]], None]:
    """Return a function that raises `InputError` if a site of this name and offer cannot take part."""

    def check(name: str, entries: dict[str, Any]) -> None:
        if name not in config.client_names:
            raise InputError(f"it is not part of this run; its sites are {', '.join(config.client_names)}")
        offer = Offer.from_json(entries)
        if config.data.dataset == SITES:
            check_offer(config, offer)

    return check


def plan_from_offers(config: Config, offers: Mapping[str, dict[str, Any]]) -> ServerFederation:
    """Return the federation as the coordinator sees it. A rehearsal partitions a dataset that every site can load."""
    if config.data.dataset != SITES:
        return simulation.build_federation(config)
    return RemoteFederation(config, {name: Offer.from_json(offer) for name, offer in offers.items()})
