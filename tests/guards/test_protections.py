"""Privacy configs: validation before the first round, and release limits."""

from __future__ import annotations

from typing import Any

import pytest

from polyfed.catalogue import make
from polyfed.config import PrivacyConfig, parse
from polyfed.errors import InputError
from polyfed.guards import accountant
from polyfed.guards.protections import Protection, Schedule, resolve, steps_by_field
from polyfed.runs.secret import derive_key, load_secret


def protection(method: str, field: str, schedule: Schedule | None = None, **asked: Any) -> Protection:
    settings = {field: PrivacyConfig(**{"clip": 1.0, "epsilon": 1.0, **asked})}
    return resolve(settings, make({"name": method}), schedule or Schedule(5))[0]


def test_epsilon_covers_all_rounds() -> None:
    whole = protection("fedproto", "prototypes", Schedule(5))
    assert whole.limit == whole.planned == 5 and whole.unit == "row" and whole.sensitivity == 2.0
    assert accountant.epsilon([(whole.multiplier, 5)], 1e-5) == pytest.approx(1.0, abs=1e-6)
    each = protection("fedproto", "prototypes", per_release=True)
    assert accountant.epsilon([(each.multiplier, 1)], 1e-5) == pytest.approx(1.0, abs=1e-6)
    assert each.limit is None and each.multiplier < whole.multiplier
    given = protection("fedproto", "prototypes", epsilon=None, noise=3.0)
    assert (given.multiplier, given.sigma, given.limit) == (3.0, 6.0, None)


def test_repeated_rounds_and_finish_are_included() -> None:
    assert protection("fedproto", "prototypes", Schedule(5, attempts=3)).planned == 15
    assert protection("ccvr", "statistics").limit == 6  # it has a finish
    once = protection("ccvr", "statistics", releases=1)
    assert (once.limit, once.planned) == (1, 1)
    assert protection("ccvr", "statistics", Schedule(5, attempts=3), releases=1).planned == 3


def test_units_and_sensitivities() -> None:
    whole = protection("fedavg", "model")
    assert whole.unit == "message" and whole.guarantee.startswith(
        "any change of the client's data that does not alter"
    )
    told = protection("fedproto", "prototypes", unit="message").guarantee
    assert told.endswith("without noise: which classes have a row, and how many samples are behind it")
    assert (
        protection("fedvtc", "deviation").guarantee == "any change of the client's data"
    )  # nothing leaves beside it
    assert protection("fedvtc", "decoder").guarantee.endswith("whether the field is there")
    mean = protection("fedproto", "prototypes", clip=3.0, min_count=10)
    assert mean.sensitivity == pytest.approx(0.6) and mean.sigma == pytest.approx(0.6 * mean.multiplier)
    assert "with the client's model taken as known" in mean.guarantee
    measured = protection("fedproto", "prototypes", clip=None, epsilon=0.5, sensitivity="measured")
    assert measured.guarantee.startswith("none") and measured.sigma is None
    assert measured.multiplier == pytest.approx(9.6896, abs=1e-4)  # Eq. 15: sqrt(2 ln(1.25 / 1e-5)) / 0.5


def test_uploaded_fields_follow_from_the_class() -> None:
    assert steps_by_field(make({"name": "fedavg"})) == {"model": ("train",), "samples": ("train",)}
    assert steps_by_field(make({"name": "fedproto"})) == {"prototypes": ("train",)}
    assert steps_by_field(make({"name": "local"})) == {}


@pytest.mark.parametrize(
    ("method", "field", "asked", "said"),
    [
        ("fedproto", "prototype", {}, "fedproto sends no field 'prototype'; did you mean 'prototypes'"),
        ("local", "prototypes", {}, "local sends no field 'prototypes'; there is none"),
        ("fedavg", "samples", {}, "'samples' is one number; tables, tensors and weights can be protected"),
        (
            "fedavg",
            "model",
            {"unit": "row"},
            "privacy.model.unit is 'row', but 'model' has no rows of which a sample influences only one",
        ),
        (
            "fedavg",
            "model",
            {"min_count": 2},
            "privacy.model.min_count needs class means",
        ),
        (
            "fedl2g",
            "gradient",
            {"unit": "row"},
            "'gradient' has no rows of which a sample influences only one",
        ),
        ("fedl2g", "gradient", {"min_count": 2}, "privacy.gradient.min_count needs class means"),
        ("dffke", "targets", {"unit": "row"}, "'targets' has no rows"),
        ("fedavg", "model", {"relative_to": "modle"}, "does not receive; did you mean 'model'"),
    ],
)
def test_refused_before_the_first_round(method: str, field: str, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        protection(method, field, **asked)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"clip": 1.0}, r"privacy.prototypes is .*: give either epsilon or noise"),
        ({"clip": 1.0, "epsilon": 1.0, "noise": 1.0}, "give either epsilon or noise"),
        ({"epsilon": 1.0}, "give clip"),
        ({"clip": 0, "epsilon": 1.0}, r"privacy.prototypes.clip is 0: expected greater than 0"),
        ({"clip": 1.0, "epsilon": 1.0, "delta": 1.0}, r"privacy.prototypes.delta is 1.0"),
        ({"clip": 1.0, "epsilom": 1.0}, r"unknown key 'epsilom' in 'privacy.prototypes'; did you mean 'epsilon'"),
        ({"epsilon": 2.0, "sensitivity": "measured"}, "needs epsilon of at most 1"),
        ({"clip": 1.0, "noise": 1.0, "per_release": True}, "per_release applies to epsilon"),
    ],
)
def test_refused_when_a_config_is_read(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse({"privacy": {"prototypes": asked}})


def test_means_of_one_step_need_one_bound() -> None:
    asked = {name: PrivacyConfig(clip=clip, noise=1.0, min_count=2) for name, clip in (("a", 1.0), ("b", 2.0))}

    from dataclasses import dataclass

    from polyfed.core import Client, Method, Payload, TableField, step

    @dataclass(frozen=True)
    class Two(Method):
        @step(up={name: TableField("features", counts=True, by_sample=True) for name in ("a", "b")})
        def train(self, client: Client, msg: Payload) -> None: ...

    with pytest.raises(InputError, match="they need the same clip and min_count; found 1 with 2 and 2 with 2"):
        resolve(asked, Two(), Schedule(1))


def test_a_secret_is_created_once_and_private(tmp_path: Any) -> None:
    made = load_secret(tmp_path / "site")
    assert len(made) == 64 and load_secret(tmp_path / "site") == made != load_secret(tmp_path / "other")
    assert (tmp_path / "site" / "privacy.secret").stat().st_mode & 0o077 == 0
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["privacy.secret"]
    runs = {derive_key(made, "noise", run) for run in ("a", "b")}
    assert len(runs | {made}) == 3 and derive_key("", "noise", "a") == ""
