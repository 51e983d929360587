"""`polyfed export` writes models that load without the run, as safetensors and as ONNX."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.trained.trained_runs import run
from torch import nn

import polyfed
from polyfed.cli.app import main
from polyfed.errors import InputError
from polyfed.models import ModelSpec, build, registry
from polyfed.trained.model_folder import read_model

X = np.random.default_rng(0).integers(0, 256, (5, 1, 8, 8), dtype=np.uint8)


def test_exported_models_need_neither_run_nor_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "run", "fedproto", names=["a", "b", "c", "d"])
    before = polyfed.load_client(tmp_path / "run", "c").predict_proba(X)
    assert main(["export", str(tmp_path / "run"), "-o", str(tmp_path / "models")]) == 0
    assert "Exported 4 models" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "run")
    for client in (2, "c"):
        assert np.array_equal(polyfed.load_client(tmp_path / "models", client).predict_proba(X), before)
    assert np.array_equal(polyfed.load_client(tmp_path / "models" / "c").predict_proba(X), before)


def test_the_weights_load_without_the_method(tmp_path: Path) -> None:
    """What docs/trained_models.md shows: plain safetensors and plain torch."""
    from safetensors.torch import load_file

    run(tmp_path / "run", "local")
    assert main(["export", str(tmp_path / "run"), "--client", "1", "-o", str(tmp_path / "models")]) == 0
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["1"]
    folder = tmp_path / "models" / "1"
    about = json.loads((folder / "model.json").read_text())
    model = build(ModelSpec.from_json(about["model"]), shape=tuple(about["input"]["shape"]), classes=10).eval()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    with torch.no_grad():
        labels = model(torch.from_numpy(X) / 255).argmax(1).numpy()
    assert np.array_equal(labels, polyfed.load_client(folder).predict(X))


def test_a_folder_that_is_not_empty_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "run", "local")
    kept = tmp_path / "models" / "mine.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    assert main(["export", str(tmp_path / "run"), "-o", str(kept.parent)]) == 2
    assert "exists and is not empty; choose another folder" in capsys.readouterr().err
    assert [path.name for path in kept.parent.iterdir()] == ["mine.txt"]


def test_damaged_exports_are_one_sentence(tmp_path: Path) -> None:
    run(tmp_path / "run", "local")
    assert main(["export", str(tmp_path / "run"), "--client", "0", "-o", str(tmp_path / "models")]) == 0
    folder = tmp_path / "models" / "0"
    weights, about = (folder / "model.safetensors").read_bytes(), (folder / "model.json").read_text()
    (folder / "model.safetensors").write_bytes(weights[:-10])
    with pytest.raises(InputError, match="not a complete safetensors file"):
        read_model(folder)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "model.json").write_text(about.replace('"tiny-cnn"', '"tiny-mlp"'))
    with pytest.raises(InputError, match="has no tensor 'backbone"):
        read_model(folder)
    (folder / "model.json").write_text("[]")
    with pytest.raises(InputError, match="not a description that polyfed export wrote"):
        read_model(folder)


def test_a_model_of_the_user_must_be_registered_first(tmp_path: Path) -> None:
    def flat(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes))

    polyfed.models.register("flat", flat, head="3")
    run(tmp_path / "run", "local", models={"group": ["flat"]})
    before = polyfed.load_client(tmp_path / "run", 0).predict_proba(X)
    assert main(["export", str(tmp_path / "run"), "--client", "0", "-o", str(tmp_path / "models")]) == 0
    assert np.array_equal(polyfed.load_client(tmp_path / "models", 0).predict_proba(X), before)
    del registry._registered["flat"]
    with pytest.raises(InputError, match=r"the model 'flat' of .* is not one of polyfed's; register it before"):
        polyfed.load_client(tmp_path / "models", 0)


@pytest.mark.parametrize(("method", "client"), [("fedproto", "0"), ("local", "3")])
def test_onnx_files_give_the_same_scores(method: str, client: str, tmp_path: Path) -> None:
    import onnx
    from onnx.reference import ReferenceEvaluator

    run(tmp_path / "run", method, participation=1.0)
    command = ["export", str(tmp_path / "run"), "--client", client, "--onnx", "-o", str(tmp_path / "models")]
    assert main(command) == 0
    folder = tmp_path / "models" / client
    outputs: Any = ReferenceEvaluator(onnx.load(folder / "model.onnx")).run(None, {"samples": X})
    np.testing.assert_allclose(outputs[0], polyfed.load_client(folder).scores(X).numpy(), rtol=1e-4, atol=1e-5)
