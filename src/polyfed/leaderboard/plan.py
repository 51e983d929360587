"""Plan the runs of a leaderboard: which methods run in a scenario, with which models, and why others do not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfed import catalogue
from polyfed.config import Config, parse
from polyfed.config.loading import apply_overrides, read_source
from polyfed.config.sweep import SweepRun
from polyfed.errors import InputError, PolyfedError, nearest
from polyfed.leaderboard.scenarios import FILTERED, LOCAL, Scenario, Variant, method_overrides

SLICES = "needs models that are slices of the largest"


@dataclass(frozen=True)
class Entry:
    """A method in a scenario, with the settings that it runs with."""

    method: str
    variant: Variant
    overrides: tuple[str, ...]  # of the scenario's preset
    training_flops: float  # estimated for the whole run
    rate: float  # train.lr

    @property
    def name(self) -> str:
        """The method, with its models if they are not those of the scenario."""
        return f"{self.method} ({self.variant.models})" if self.variant.models else self.method


@dataclass(frozen=True)
class Plan:
    """What runs in a scenario, and the reasons why other methods do not."""

    scenario: Scenario
    entries: tuple[Entry, ...]
    excluded: dict[str, str]
    root: Path | None = None  # folder of the data

    def run(self, entry: Entry, seed: int, out: Path) -> SweepRun:
        """Return the run of an entry with its folder."""
        models = entry.variant.models if entry.method == LOCAL else ""
        words = [entry.method, models, f"lr{entry.rate:g}", f"seed{seed}"]
        folder = out / self.scenario.name / re.sub(r"[^\w.]+", "-", "-".join(word for word in words if word))
        config = make_config(self.scenario, entry.overrides, seed, self.root)
        return SweepRun(f"{self.scenario.name}/{folder.name}", config, folder)

    def runs(self, seeds: Sequence[int], out: Path) -> list[SweepRun]:
        """Return all runs, those of the first seed first."""
        return [self.run(entry, seed, out) for seed in seeds for entry in self.entries]


def method_names(chosen: Sequence[str] = ()) -> list[str]:
    """Return the methods of the leaderboard, `local` first. Raise InputError for an unknown name."""
    known = [*catalogue.methods(), *FILTERED]
    for name in chosen:
        if name not in known:
            raise InputError(f"--methods has '{name}', which is no method; {nearest(name, known)}")
    names = [name for name in known if name != LOCAL and (not chosen or name in chosen)]
    return [LOCAL, *names]


def plan_scenario(
    scenario: Scenario, methods: Sequence[str], root: Path | None = None, settings: Sequence[str] = ()
) -> Plan:
    """Choose for every method the first variant of the scenario that passes the checks of `polyfed check`.

    Each variant with other models gets its own runs of local training, so that gains compare equal models.
    """
    entries: list[Entry] = []
    excluded: dict[str, str] = {}
    for method in methods:
        refusals: list[str] = []
        for variant in scenario.variants:
            if _needs_sizes(method) and variant.models.startswith("all "):
                continue  # slices of equal models are whole models: the method would be FedAvg
            try:
                entries.append(_entry(scenario, method, variant, root, settings))
                break
            except PolyfedError as refusal:
                refusals.append(str(refusal))
        else:
            if method == LOCAL:
                raise InputError(refusals[0])
            excluded[method] = short_reason(refusals[0])
    used = sorted({entry.variant.models for entry in entries} - {""})
    variants = [next(one for one in scenario.variants if one.models == models) for models in used]
    baselines = [_entry(scenario, LOCAL, variant, root, settings) for variant in variants]
    return Plan(scenario, (*baselines, *entries), excluded, root)


def _entry(scenario: Scenario, method: str, variant: Variant, root: Path | None, settings: Sequence[str]) -> Entry:
    """Return the entry of a method. Raise PolyfedError if a check before the run fails."""
    from polyfed.federation.data_stand_in import federation_without_data
    from polyfed.federation.workload import estimate_workload

    overrides = (*method_overrides(method), *variant.overrides, *settings)
    config = make_config(scenario, overrides, 0, root)
    federation = federation_without_data(config)
    federation.suggests = False  # the message needs no list of other methods
    profiles = federation.profiles()
    federation.check(profiles)
    flops = estimate_workload(federation, profiles).training_flops
    return Entry(method, variant, overrides, flops, config.train.lr)


def make_config(scenario: Scenario, overrides: Sequence[str], seed: int, root: Path | None = None) -> Config:
    """Return the config of a run."""
    raw: dict[str, Any] = apply_overrides(read_source(scenario.preset), [*overrides, "engine.name=serial"])
    if scenario.needs_root and root is not None:
        raw["data"] = {**raw["data"], "root": str(root)}
    return parse({**raw, "seed": seed})


def _needs_sizes(method: str) -> bool:
    info = catalogue.methods().get(method)
    return info is not None and "sub_models" in info.requires


def short_reason(message: str) -> str:
    """Return the requirement that a message of `polyfed check` names, such as 'needs samples that are pictures'."""
    requirement = re.search(r"\bneeds [^,;:(]*", message)
    if requirement:
        return requirement[0].strip()
    return SLICES if "is no sub-model of" in message else message.partition(";")[0]
