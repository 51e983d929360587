"""Sites without a network: the engine's messages are passed to real sites in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tests import small

from polyfed.config import Config, parse
from polyfed.core.engine import Failure
from polyfed.deploy.reply_cache import from_bytes, to_bytes
from polyfed.deploy.site import Site
from polyfed.deploy.site_config import public_config
from polyfed.deploy.site_run import plan_from_offers
from polyfed.deploy.site_setup import SiteSetup
from polyfed.engines.flower import FlowerEngine, SiteMessage
from polyfed.experiment import Experiment
from polyfed.runs.folder import RunFolder
from polyfed.runs.records import Result

RUN = "run-1"
SETTING: dict[str, Any] = {
    "clients": 2,
    "names": ["ana", "ben"],
    "rounds": 2,
    "data": {"limit": 120},
    "evaluate": {"every": 10},
    "engine": {"name": "serial"},
}
# Five kinds of method: weights, class means, several steps, decoders with public data, sub-models.
METHODS: dict[str, dict[str, Any]] = {
    "lg-fedavg": {"method": {"name": "lg-fedavg"}},
    "fedproto": {"method": {"name": "fedproto"}},
    "fedl2g": {"method": {"name": "fedl2g", "warmup": 2}},
    "dffke": {"method": {"name": "dffke", **small.DFFKE}},
    "scaffold": {
        "method": {"name": "scaffold"},
        "splitting": "stage",
        "server_filter": "inco",
        "models": {"group": "tiny-resnets"},
    },
}


class DirectLink:
    """A link that lets a site answer when its reply is polled. `modify` changes the replies of a site."""

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self.sites = dict(sites)
        self.offline: set[str] = set()
        self.silent: set[str] = set()  # online, but without replies
        self.lost_sites: set[str] = set()  # gone without a notice
        self.was_reset: list[str] = []
        self.modify: dict[str, Any] = {}
        self.sent: list[tuple[str, SiteMessage]] = []
        self._messages: dict[str, tuple[str, SiteMessage]] = {}

    def online(self) -> frozenset[str]:
        return frozenset(self.sites.keys() - self.offline)

    def send(self, messages: Mapping[str, SiteMessage], ttl: float) -> dict[str, str]:
        ids = {}
        for name, message in messages.items():
            self.sent.append((name, message))
            ids[name] = f"message-{len(self.sent)}"
            self._messages[ids[name]] = (name, message)
        return ids

    def poll(self, message_ids: Iterable[str]) -> dict[str, SiteMessage | Failure]:
        replies: dict[str, SiteMessage | Failure] = {}
        for message_id in message_ids:
            name, message = self._messages[message_id]
            if name not in self.silent:
                reply = self.sites[name].handle(from_bytes(to_bytes(message)))
                replies[message_id] = self.modify.get(name, lambda reply: reply)(reply)
        return replies

    def lost(self) -> frozenset[str]:
        return frozenset(self.lost_sites)

    def reset(self, name: str) -> None:
        self.was_reset.append(name)


def handshake(config: Config) -> SiteMessage:
    """Return the first message of a coordinator."""
    return SiteMessage({"do": "hello", "run": RUN, "config": public_config(config.to_dict())})


def collect_offers(link: DirectLink, config: Config) -> dict[str, dict[str, Any]]:
    """Send the handshake to all sites. Return their offers."""
    message = handshake(config)
    return {name: site.handle(message).header["offer"] for name, site in link.sites.items()}


def run_over(
    link: DirectLink, settings: Mapping[str, Any], folder: Path, timeout: float = 60.0, run: str = RUN
) -> Result:
    """Run an experiment over sites, as a coordinator does."""
    config = parse(settings)
    plan = plan_from_offers(config, collect_offers(link, config))
    run_folder = RunFolder(folder)
    experiment = Experiment(plan, run_folder, [], FlowerEngine(link, run=run, timeout=timeout))
    if not run_folder.exists():
        run_folder.create(config.to_dict())
    return experiment.run()


def make_sites(folder: Path, setups: Mapping[str, SiteSetup], allow: list[str] | None = None) -> DirectLink:
    return DirectLink({name: Site(name, folder / name, setup, allow) for name, setup in setups.items()})


# a site's own data and model

OWN_MODEL = """
from torch import nn

def build(shape, classes):
    inputs = shape[0] * shape[1] * shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, classes))
"""
OWN_SETTING: dict[str, Any] = {
    "names": ["ana", "ben", "cleo"],
    "clients": 3,
    "rounds": 2,
    "method": {"name": "fedproto"},
    "data": {"dataset": "sites", "shape": [1, 8, 8], "class_names": ["low", "middle", "high"]},
    "evaluate": {"every": 10, "global": False},
}


def own_data(folder: Path, seed: int, count: int = 24) -> Path:
    """Write images whose brightness determines their class, as arrays."""
    rng = np.random.Generator(np.random.PCG64(seed))
    labels = np.arange(count) % 3
    images = np.clip(rng.normal(60.0 + 60.0 * labels[:, None, None], 20.0, (count, 8, 8)), 0, 255).astype(np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "train.npz", x=images, y=labels)
    return folder
