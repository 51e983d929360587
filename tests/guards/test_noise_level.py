"""Noise that is stronger than the signal: the ratio by hand, and the message of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polyfed.cli.app import main
from polyfed.runs.noise_level import noise_to_signal


def upload(client: str, shape: str, size: int, round: int = 1) -> dict[str, Any]:
    return {"round": round, "client": client, "fields": {"f": size, "other": 4}, "shapes": {"f": shape}}


@pytest.mark.parametrize(
    ("shape", "size", "unit", "width"),
    [
        ("3 rows of 64", 3 * 64 * 4, "row", 64),  # each row has noise and a clipping norm of its own
        ("3 rows of 64", 3 * 64 * 4, "message", 192),
        ("128 x 4 x 4", 128 * 16 * 4, "row", 16),
        ("128", 512, "message", 128),
        ("4 tensors", 4096, "message", 1024),
    ],
)
def test_the_ratio_is_the_norm_of_the_noise_in_a_mean_over_the_clipping_norm(
    shape: str, size: int, unit: str, width: int
) -> None:
    privacy = {"fields": {"f": {"clip": 2.0, "sigma": 0.5, "unit": unit}}}
    uploads = [upload("a", shape, size), upload("b", shape, size), upload("a", shape, size, round=2)]
    # The noise of one upload has the norm 0.5 sqrt(width), that of a mean over two clients 0.5 sqrt(width / 2).
    ratio, clients = noise_to_signal(privacy, uploads)["f"]
    assert ratio == pytest.approx(0.5 * (width / 2) ** 0.5 / 2.0) and clients == 2


def test_a_measured_sensitivity_has_no_clipping_norm_to_compare_with() -> None:
    privacy = {"fields": {"f": {"clip": None, "sigma": None, "unit": "row"}}}
    assert noise_to_signal(privacy, [upload("a", "3 rows of 64", 768)]) == {}


@pytest.mark.parametrize(("noise", "warned"), [(0.01, False), (20.0, True)])
def test_a_run_says_when_noise_is_stronger_than_the_signal(
    noise: float, warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "quickstart", "clients=2", "rounds=1", "engine.name=serial", "data.limit=200"]
    privacy = f"privacy={{prototypes: {{clip: 1.0, noise: {noise}}}}}"
    assert main([*command, privacy, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    said = "the noise in 'prototypes' is stronger than the signal" in capsys.readouterr().err
    assert said == warned
