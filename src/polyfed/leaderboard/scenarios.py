"""The scenarios of the leaderboard. The settings of a scenario are a preset of the same name in `leaderboard/`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from polyfed.errors import InputError, nearest

FOLDER = "leaderboard"  # of the presets
LOCAL = "local"


@dataclass(frozen=True)
class Variant:
    """Settings of a scenario for methods that cannot use its models. `models` names the other models in tables."""

    overrides: tuple[str, ...] = ()
    models: str = ""  # empty: the models of the scenario


@dataclass(frozen=True)
class Scenario:
    """A fixed setting in which methods are compared. The first variant that a method can use is taken."""

    name: str
    title: str
    models: Literal["different", "sizes"]  # how the models of clients differ
    data: Literal["images", "series"]
    skew: Literal["strong", "mild"]  # of the label distributions
    variants: tuple[Variant, ...]
    needs_root: bool = False  # the data must be given with data.root
    note: str = ""  # what a reader of the table must know

    @property
    def preset(self) -> str:
        return f"{FOLDER}/{self.name}"


def _one_model(name: str, sgd_lr: float) -> tuple[Variant, Variant]:
    """Return the variants with one common model: trained as in the scenario, and with plain SGD.

    Some methods are defined for plain SGD only.
    """
    models = f"models.group=[{name}]"
    sgd = ("train.optimizer=sgd", f"train.lr={sgd_lr}")
    return Variant((models,), f"all {name}"), Variant((models, *sgd), f"all {name}, SGD")


def _group(name: str, *overrides: str) -> Variant:
    """Return the variant with the models of another group."""
    return Variant((f"models.group={name}", "models.feature_map=null", *overrides), f"group {name}")


SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "few-skewed",
            "Little data, strong label skew",
            "different",
            "images",
            "strong",
            (Variant(), *_one_model("tiny-cnn", 0.1)),
        ),
        Scenario(
            "enough-mild",
            "Enough data, mild label skew",
            "different",
            "images",
            "mild",
            (Variant(), *_one_model("tiny-cnn", 0.1)),
        ),
        Scenario(
            "model-sizes",
            "Sizes of one model family",
            "sizes",
            "images",
            "mild",
            (
                Variant(),
                Variant(("splitting=width",)),  # the same models, as parts of the largest
                _group("tiny-resnets3"),
                _group("tiny-resnets3", "splitting=stage"),
                _group("tiny-exits"),
                *_one_model("tiny-cnn", 0.1),
            ),
        ),
        Scenario(
            "har-persons",
            "Natural partition: UCI HAR by person",
            "different",
            "series",
            "mild",
            (Variant(), *_one_model("tiny-series-cnn", 0.1)),
            needs_root=True,
            note="The clients are the eight persons of the training split with the most windows. The common test set "
            "has its other persons. Windows overlap by half, so the personal accuracy is measured on windows that "
            "resemble the training data, and learning rates are chosen on windows of the clients. The command writes "
            "this split to `runs/leaderboard/uci_har`.",
        ),
    )
}

# Options of methods whose defaults are made for large data: those of their CPU presets.
CPU_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "dffke": (
        "method.tau=1.0",
        "method.width=64",
        "method.decoder_channels=32",
        "method.exchange_epochs=1",
        "method.least_steps=72",
        "method.batch=64",
    ),
    "fedvtc": ("method.samples_per_class=50", "method.finetune_lr=0.001", "method.recompute=false"),
}
# Server filters are compared as methods of their own, on top of FedAvg.
FILTERED: Mapping[str, tuple[str, ...]] = {"fedavg + inco": ("method=fedavg", "server_filter=inco")}


def find_scenario(name: str) -> Scenario:
    """Return a scenario by its name. Raise InputError if there is none."""
    if name not in SCENARIOS:
        raise InputError(f"there is no scenario '{name}'; {nearest(name, SCENARIOS)}")
    return SCENARIOS[name]


def method_overrides(method: str) -> tuple[str, ...]:
    """Return the overrides that select a method of the leaderboard."""
    return FILTERED.get(method) or (f"method={method}", *CPU_OPTIONS.get(method, ()))


def base_method(method: str) -> str:
    """Return the method whose declarations hold: FedAvg for a filter on top of it."""
    return method.partition(" + ")[0]
