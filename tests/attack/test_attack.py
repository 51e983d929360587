"""The reconstruction attack on real runs: it recovers images from uploads, and less from uploads with noise."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from polyfed import api
from polyfed.attack.attacker import Decoder, train
from polyfed.attack.reconstruction import attack
from polyfed.cli.app import main
from polyfed.core import (
    Client,
    Cohort,
    Method,
    Payload,
    Reply,
    Sends,
    Server,
    TensorField,
    WeightsField,
    register,
    rng,
    step,
)
from polyfed.core.client import weights_of
from polyfed.errors import InputError

STEPS = 150


@register("toy-embedding")
@dataclass(frozen=True)
class Embedding(Method):
    """Method that uploads a row per sample and the model that computed it, then trains the model further."""

    sends = Sends(up="an embedding of every sample, with the model", down="nothing")
    needs = replace(Method.needs)

    def round(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.upload)
        cohort.call(self.train_further)

    @step(up={"embeddings": TensorField(("samples", "features"), by_sample=True), "weights": WeightsField()})
    def upload(self, client: Client, msg: Payload) -> Reply:
        client.fit()
        with torch.no_grad():
            rows = torch.cat([client.model.features(x) for x, _ in client.clean_pass()])
        return {"embeddings": rows, "weights": weights_of(client.model)}

    @step()
    def train_further(self, client: Client, msg: Payload) -> None:
        client.fit()


def run(folder: Path, privacy: dict[str, Any] | None, method: Any = Embedding, **evaluate: Any) -> Path:
    api.run(
        "quickstart",
        method=method,
        rounds=2,
        clients=4,
        models={"group": ["tiny-mlp"]},
        engine={"name": "serial"},
        privacy=privacy,
        evaluate={"every": 2, "record_uploads": [1], **evaluate},
        out=folder,
    )
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("attacked")
    return {
        "open": run(root / "open", None),
        "noised": run(root / "noised", {"embeddings": {"clip": 1.0, "noise": 0.5}}),
        "means": run(root / "means", {"prototypes": {"clip": 1.0, "noise": 0.2}}, method="fedproto"),
        "weights": run(root / "weights", None, method="fedavg"),
    }


def test_images_are_recovered_from_embeddings(folders: dict[str, Path]) -> None:
    result = attack(folders["open"], steps=STEPS)
    report, scores = result.report, result.report["scores"]
    assert (report["client"], report["field"], report["round"], report["protected"]) == ("1", "embeddings", 2, False)
    assert report["model"] == "uploaded as 'weights'" and report["cosine"] == pytest.approx(1.0, abs=1e-4)
    assert set(scores) == {"mean image", "class mean image", "upload"}
    assert scores["upload"]["psnr"] > scores["class mean image"]["psnr"] + 1.0
    assert scores["upload"]["ssim"] > scores["class mean image"]["ssim"]
    assert len(result.target_images) == report["rows"] == len(result.reconstructions[-1].images)


def test_noise_prevents_the_reconstruction(folders: dict[str, Path]) -> None:
    report = attack(folders["noised"], steps=STEPS).report
    scores = report["scores"]
    assert report["protected"] and report["cosine"] < 0.5
    assert scores["upload without noise"]["psnr"] > scores["upload"]["psnr"] + 3.0
    assert scores["upload without noise"]["ssim"] > scores["upload"]["ssim"]
    # not better than the mean image of the class
    assert scores["upload"]["psnr"] < scores["class mean image"]["psnr"] + 0.5


def test_attack_is_deterministic(folders: dict[str, Path]) -> None:
    assert attack(folders["noised"], steps=5).report == attack(folders["noised"], "1", "embeddings", steps=5).report


def test_class_means_on_the_command_line(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "grid.png"
    command = ["attack", str(folders["means"]), "--steps", "20", "-o", str(picture)]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["field"] == "prototypes" and report["model"] == "after round 2"
    assert report["samples_per_row"][1] > 1 and report["picture"] == str(picture)
    with Image.open(picture) as image:
        assert image.format == "PNG" and min(image.size) > 100
    assert main(command) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "upload without noise" in shown and "The attacker has the client's model" in shown


@pytest.mark.parametrize(
    ("run_name", "options", "message"),
    [
        ("open", ["--client", "0"], "has no recorded uploads of client 0; run it with evaluate.record_uploads=[0]"),
        ("open", ["--client", "9"], "there is no client called '9'"),
        ("open", ["--field", "embedding"], "sent no field 'embedding'; did you mean 'embeddings'?"),
        (
            "open",
            ["--field", "weights"],
            "field 'weights' has no rows of the client's samples or their class means",
        ),
        ("weights", [], "client 1 sent model, samples; the attack needs rows"),
    ],
)
def test_invalid_targets(
    folders: dict[str, Path], run_name: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attack", str(folders[run_name]), *options]) == 2
    assert message in capsys.readouterr().err


def test_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run folder"):
        attack(tmp_path)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 7, 9), (1, 28, 28)])
def test_decoder_learns_to_distinguish_rows(shape: tuple[int, int, int]) -> None:
    """Train on two rows with two images."""
    with rng.seeded(1):
        decoder = Decoder(3, shape)
    rows = torch.tensor([[1.0, 0.0, 5.0], [0.0, 1.0, 5.0]])
    images = torch.stack([torch.zeros(shape), torch.ones(shape)])
    attacker = train(decoder, rows, images, lambda x, _: x, 60, torch.Generator().manual_seed(0))
    reconstructed = attacker.reconstruct(rows)
    assert reconstructed.shape == images.shape
    assert float(reconstructed[0].mean()) < 0.2 and float(reconstructed[1].mean()) > 0.8
