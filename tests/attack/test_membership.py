"""The membership-inference attack: exact scores, and a model that has memorised its samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from polyfed import api
from polyfed.attack.membership import Separation, infer_membership
from polyfed.cli.app import main
from polyfed.errors import InputError


def test_scores_by_hand() -> None:
    """Of the 6 pairs, 1 < 2, 1 < 3, 2 < 3 count, 2 = 2 counts half, 5 > 2 and 5 > 3 do not: 3.5 / 6."""
    separation = Separation(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([2.0, 3.0]))
    assert separation.auc == pytest.approx(3.5 / 6)
    # the threshold is 8/3: two of three members and one of two others are below
    assert separation.advantage == pytest.approx(2 / 3 - 1 / 2)
    assert Separation(torch.zeros(4), torch.zeros(3)).auc == 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose clients memorise their few samples in many epochs."""
    path = tmp_path_factory.mktemp("membership") / "run"
    api.run(
        "quickstart",
        method="fedproto",
        clients=2,
        rounds=2,
        data={"limit": 120},
        train={"epochs": 40},
        engine={"name": "serial"},
        evaluate={"record_uploads": [1], "every": 2},
        out=path,
    )
    return path


def test_a_model_reveals_its_training_samples(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attack", str(folder), "--membership", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    scores = report["scores"]
    assert report["client"] == "1" and set(scores) == {"initial model", "model", "uploaded 'prototypes'"}
    assert scores["model"]["auc"] > max(0.6, scores["initial model"]["auc"])
    assert scores["uploaded 'prototypes'"]["auc"] > 0.5
    assert main(["attack", str(folder), "--membership", "--client", "0"]) == 0  # without recorded uploads
    shown = capsys.readouterr().out
    assert "initial model" in shown and "An AUC of 0.5" in shown and "prototypes" not in shown


def test_an_unknown_client(folder: Path) -> None:
    with pytest.raises(InputError, match="there is no client called '7'"):
        infer_membership(folder, "7")
