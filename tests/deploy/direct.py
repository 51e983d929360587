"""Sites without a network: the engine's messages are handed to real sites in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tests import small

from polyfed.config import Config, parse
from polyfed.core.engine import Failure
from polyfed.deploy.site import Bring, Site, packed, public, unpacked
from polyfed.deploy.site_run import plan_of
from polyfed.engines.flower import FlowerEngine, Parcel
from polyfed.experiment import Experiment
from polyfed.runs.folder import RunFolder

RUN = "run-1"
SETTING: dict[str, Any] = {
    "clients": 2,
    "names": ["ana", "ben"],
    "rounds": 2,
    "data": {"limit": 120},
    "evaluate": {"every": 10},
    "engine": {"name": "serial"},
}
# five kinds of method: of weights, of class means, of several steps, with decoders and public data, with sub-models
METHODS: dict[str, dict[str, Any]] = {
    "lg-fedavg": {"method": {"name": "lg-fedavg"}},
    "fedproto": {"method": {"name": "fedproto"}},
    "fedl2g": {"method": {"name": "fedl2g"}},
    "dffke": {"method": {"name": "dffke", **small.DFFKE}},
    "scaffold": {
        "method": {"name": "scaffold"},
        "splitting": "stage",
        "server_filter": "inco",
        "models": {"group": "tiny-resnets"},
    },
}


class DirectLink:
    """A link whose letters are answered when somebody looks for replies; `spoil` changes them on their way."""

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self.sites = dict(sites)
        self.away: set[str] = set()  # offline
        self.silent: set[str] = set()  # online, and does not answer
        self.doubted: list[str] = []
        self.spoil: dict[str, Any] = {}
        self.sent: list[tuple[str, Parcel]] = []
        self._letters: dict[str, tuple[str, Parcel]] = {}

    def online(self) -> frozenset[str]:
        return frozenset(self.sites.keys() - self.away)

    def send(self, parcels: Mapping[str, Parcel], seconds: float) -> dict[str, str]:
        numbers = {}
        for name, parcel in parcels.items():
            self.sent.append((name, parcel))
            numbers[name] = f"letter-{len(self.sent)}"
            self._letters[numbers[name]] = (name, parcel)
        return numbers

    def replies(self, letters: Iterable[str]) -> dict[str, Parcel | Failure]:
        found: dict[str, Parcel | Failure] = {}
        for letter in letters:
            name, parcel = self._letters[letter]
            if name not in self.silent:
                reply = self.sites[name].handle(unpacked(packed(parcel)))
                found[letter] = self.spoil.get(name, lambda parcel: parcel)(reply)
        return found

    def doubt(self, name: str) -> None:
        self.doubted.append(name)


def hello(link: DirectLink, config: Config) -> dict[str, dict[str, Any]]:
    """What the sites offer."""
    greeting = Parcel({"do": "hello", "run": RUN, "config": public(config.to_dict())})
    heads = {name: site.handle(greeting).head for name, site in link.sites.items()}
    return {name: head["offer"] for name, head in heads.items()}


def run_over(
    link: DirectLink, settings: Mapping[str, Any], folder: Path, timeout: float = 60.0, run: str = RUN
) -> dict[str, Any]:
    """An experiment over sites, as a coordinator runs it."""
    config = parse(settings)
    plan = plan_of(config, hello(link, config))
    where = RunFolder(folder)
    experiment = Experiment(plan, where, [], FlowerEngine(link, run=run, timeout=timeout))
    if not where.exists():
        where.create(config.to_dict())
    return experiment.run()


def sites(folder: Path, brings: Mapping[str, Bring], allow: list[str] | None = None) -> DirectLink:
    return DirectLink({name: Site(name, folder / name, bring, allow) for name, bring in brings.items()})


# data and a model that a site brings

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
    """Pictures whose brightness tells their class, as arrays."""
    draw = np.random.Generator(np.random.PCG64(seed))
    labels = np.arange(count) % 3
    images = np.clip(draw.normal(60.0 + 60.0 * labels[:, None, None], 20.0, (count, 8, 8)), 0, 255).astype(np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "train.npz", x=images, y=labels)
    return folder
