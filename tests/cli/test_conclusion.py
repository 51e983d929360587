"""The sentence that reads a comparison for the user, on hand-made results."""

from __future__ import annotations

from typing import Any

import pytest

from polyfed.cli.app import main
from polyfed.comparison import compare
from polyfed.comparison.conclusion import conclusion


def result(method: str, seed: int, personal: float, common: float | None) -> dict[str, Any]:
    kinds = {"personal": personal, "global": common}
    return {
        "name": f"{method}-{seed}",
        "method": method,
        "seed": seed,
        "accuracy": {k: None if v is None else {"final": v, "best": v} for k, v in kinds.items()},
        "bytes": {"up": 0, "down": 0},
        "seconds": {"total": 1.0},
    }


def test_it_names_the_largest_gain_its_price_and_the_losers() -> None:
    runs = [result("local", s, 0.98, 0.40) for s in (0, 1)]
    runs += [result("ours", 0, 0.97, 0.90), result("ours", 1, 0.97, 0.92), result("worse", 0, 0.98, 0.30)]
    # gains of ours: 50 and 52 points, mean 51; t(0.975, 1) = 12.706, s / sqrt(2) = 1: 51 +- 12.7
    assert conclusion(compare(runs, baseline="local")) == (
        "ours reaches 91.0 % on the common test set, 51.0 points above local (95 % interval over seeds +38.3 to "
        "+63.7); on the clients' own data it is 1.0 points below local. Below local on the common test set: worse."
    )


def test_a_loss_is_said_as_plainly_as_a_gain() -> None:
    runs = [result("local", 0, 0.98, 0.40), result("other", 0, 0.99, 0.35)]
    said = conclusion(compare(runs, baseline="local"))
    assert said is not None and "5.0 points below local" in said and "1.0 points above local" in said


def test_a_gain_or_a_loss_whose_interval_includes_zero_is_no_clear_difference() -> None:
    runs = [result("local", s, 0.98, 0.40) for s in (0, 1)]
    runs += [result("ours", 0, 0.98, 0.90), result("ours", 1, 0.98, 0.92)]
    runs += [result("more", 0, 0.98, 0.39), result("more", 1, 0.98, 0.47)]  # gains -1 and 7: 3 +- 50.8
    runs += [result("less", 0, 0.98, 0.41), result("less", 1, 0.98, 0.33)]  # gains 1 and -7: -3 +- 50.8
    said = conclusion(compare(runs, baseline="local"))
    assert said is not None and said.endswith(
        " No clear difference from local (the interval includes 0): less, more."
    )
    assert "Below local" not in said


def test_without_a_baseline_there_is_no_sentence() -> None:
    runs = [result("local", 0, 0.98, 0.5), result("other", 0, 0.99, 0.5)]
    assert conclusion(compare(runs, baseline=None)) is None


def test_without_a_common_test_set_it_is_about_the_clients_own_data() -> None:
    runs = [result("local", 0, 0.98, None), result("other", 0, 0.99, None)]
    assert conclusion(compare(runs)) == "other reaches 99.0 % on the clients' own data, 1.0 points above local."


def test_with_one_seed_the_interval_is_over_clients() -> None:
    runs = [result("local", 0, 0.98, 0.4), result("ours", 0, 0.98, 0.6)]
    for run, clients in zip(runs, ([0.3, 0.4, 0.5], [0.4, 0.6, 0.8]), strict=True):
        run["accuracy"]["global"]["by_client"] = clients
    # gains of the clients: 10, 20 and 30 points; t(0.975, 2) = 4.3027, s / sqrt(3) = 5.7735: 20 +- 24.8
    said = conclusion(compare(runs))
    assert said is not None and "20.0 points above local (95 % interval over clients -4.8 to +44.8)" in said


def test_the_command_prints_it_beside_the_table(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["clients=2", "rounds=1", "engine.name=serial", "data.limit=200", "train.epochs=1"]
    for method in ("local", "fedproto"):
        assert main(["run", "demo", f"method={method}", *small, "--out", str(tmp_path / method), "--quiet"]) == 0
    assert main(["compare", str(tmp_path)]) == 0
    out, error = capsys.readouterr()
    assert "fedproto reaches" in error and "on the common test set" in error and "fedproto reaches" not in out
