"""Runs with clients that attack the mean: robust rules stay close to the honest run, and the mean does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.methods.test_battery import METHODS
from tests.small import SMALL
from torch import Tensor

from polyfed import catalogue
from polyfed.cli.check import check as check_command
from polyfed.config import Config, parse
from polyfed.config.config import load_config
from polyfed.core.class_tables import ClassTable
from polyfed.core.step import uploads_of
from polyfed.errors import InputError
from polyfed.testing.engine_wrappers import ScalingEngine
from polyfed.testing.rounds import Outcome
from polyfed.testing.toy_federation import ToyFederation

AVERAGING = [name for name in METHODS if catalogue.load(name).averaged]
ATTACKER = "2"
# every client has samples of every class, so that four honest clients stand against one attacker in every row
BALANCED = [(5, 5, 5, 5)] * 5
FIELDS = SMALL | {"fedgen": {"untrained_generator": True}}  # FedGen's generator learns from single heads


def attacked(toy: ToyFederation, rule: Any, factor: float, *, rounds: int = 1, evaluate: bool = False) -> Outcome:
    """Run a federation in which the attacker sends its averaged values times a factor."""
    engine = ScalingEngine(frozenset({ATTACKER}), factor, toy.method.averaged)
    settings = toy.config(BALANCED, rounds=rounds, aggregation=rule, models={"group": toy.models})
    return toy.run(settings, wrap=engine, evaluate=evaluate)


def numbers(value: Any) -> list[Tensor]:
    """Return all floats of a state."""
    if isinstance(value, ClassTable):
        return numbers(value.values)
    if isinstance(value, Mapping):
        return [t for item in value.values() for t in numbers(item)]
    return [value.double().flatten()] if isinstance(value, Tensor) and value.is_floating_point() else []


def distance(a: Outcome, b: Outcome, key: str) -> float:
    return float((torch.cat(numbers(a.server[key])) - torch.cat(numbers(b.server[key]))).norm())


@pytest.mark.parametrize(
    ("method", "key"),
    [("fedavg", "model"), ("fedproto", "prototypes"), ("fedl2g", "vectors"), ("heterofl", "model")],
)
def test_one_attacker_of_five_moves_the_mean_but_not_the_robust_rules(method: str, key: str) -> None:
    with ToyFederation(catalogue.load(method), SMALL.get(method, {})) as toy:
        if method != "heterofl":
            toy.models = ["tiny-cnn"]  # prototypes of one architecture are on one scale
        honest = attacked(toy, "mean", 1)
        rules = ["median", "trimmed-mean", "geometric-median", "norm-clipped"][: 2 if method == "heterofl" else 4]
        for factor in (-10.0, 1e6):
            moved = distance(attacked(toy, "mean", factor), honest, key)
            for rule in rules if factor > 0 else rules[:1]:
                assert distance(attacked(toy, rule, factor), honest, key) < moved / (2 if factor == -10 else 20)


def test_fedavg_learns_under_attack_with_the_median_only() -> None:
    def accuracy(outcome: Outcome) -> float:
        counts = [count for client, count in outcome.accuracy["global"].items() if client != ATTACKER]
        return sum(correct for correct, _ in counts) / sum(samples for _, samples in counts)

    with ToyFederation(catalogue.load("fedavg"), {}) as toy:
        honest, mean, median = (
            accuracy(attacked(toy, rule, factor, rounds=4, evaluate=True))
            for rule, factor in (("mean", 1.0), ("mean", -10.0), ("median", -10.0))
        )
    assert median >= honest - 0.03
    assert mean < honest - 0.25


@pytest.mark.parametrize("method", AVERAGING)
def test_every_declared_mean_follows_the_rule(method: str) -> None:
    kind = catalogue.load(method)
    with ToyFederation(kind, FIELDS.get(method, {})) as toy:
        toy.models = ["tiny-resnet"] if method == "ccvr" else toy.models  # it averages equal models only
        assert set(kind.averaged) <= set(uploads_of(kind(**toy.fields)))
        outcome = attacked(toy, "median", 1e6, rounds=2 if method == "feddistill" else 1)
    assert outcome.failures == []
    # FedDistill's server keeps the last table of every client: those of the others follow the means of round 1
    values = [t for key, value in outcome.server.items() if key != ATTACKER for t in numbers(value)]
    assert max(float(t.abs().max()) for t in values if len(t)) < 1e4


def refusal(method: str, rule: Any, **changed: Any) -> str:
    """Return the message with which the checks before a run refuse a rule."""
    with ToyFederation(catalogue.load(method), SMALL.get(method, {})) as toy:
        federation = toy.federation(toy.config(**changed, aggregation=rule))
        federation.suggests = False
        with pytest.raises(InputError) as error:
            federation.check(federation.profiles())
    return str(error.value)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in AVERAGING])
def test_methods_without_a_mean_are_refused(method: str) -> None:
    assert "takes no mean over clients that it could replace; set aggregation: mean" in refusal(method, "median")


def test_rules_that_do_not_fit_are_refused() -> None:
    assert "HeteroFL train different parts of one model; use krum, median" in refusal("heterofl", "geometric-median")
    assert "train different parts" in refusal("fedavg", "geometric-median", splitting="architecture")
    few = refusal("fedavg", "median", participation=0.4)
    assert few.startswith("aggregation median needs the replies of at least 3 clients, but 2 take part in a round")
    krum = refusal("fedavg", {"name": "krum", "share": 0.45})
    assert krum.startswith(
        "aggregation krum with share 0.45 needs the replies of at least 6 clients, but 5 take part"
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("medain", "aggregation.name is 'medain'"),
        ({"name": "median", "share": 0.3}, "share is an option of trimmed-mean and krum, not of median"),
        ({"name": "krum", "norm": 1.0}, "norm is an option of norm-clipped, not of krum"),
        ({"name": "trimmed-mean", "share": 0.5}, "aggregation.share is 0.5"),
    ],
)
def test_wrong_options_are_errors(value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse({"method": "fedavg", "aggregation": value})


def test_the_mean_is_the_default_and_leaves_hashes_as_they_were() -> None:
    plain = parse({"method": "fedavg"})
    assert parse({"method": "fedavg", "aggregation": "mean"}).hash() == plain.hash()
    assert plain.to_dict()["aggregation"] == {"name": "mean"}  # options of other rules are not written
    changed = load_config("quickstart", ["aggregation=trimmed-mean", "aggregation.share=0.3"])
    assert (changed.aggregation.name, changed.aggregation.share) == ("trimmed-mean", 0.3)
    assert Config.from_dict(changed.to_dict()) == changed
    assert changed.hash() != load_config("quickstart", ["aggregation=trimmed-mean"]).hash() != plain.hash()


def test_check_shows_what_the_rule_combines(capsys: pytest.CaptureFixture[str]) -> None:
    check_command("quickstart", ["method=fednova", "models.group=[tiny-mlp]", "aggregation=median"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "aggregation median over clients for model; not for normaliser, steps" in shown
    assert "the server keeps all replies of a round in memory, up to" in shown
