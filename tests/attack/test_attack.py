"""The attack on real runs: it finds what is there, and less of it behind noise."""

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
    """Sends a row per sample, and the model that made it, which it goes on to change."""

    sends = Sends(up="an embedding of every sample, with the model", down="nothing")
    needs = replace(Method.needs)

    def round(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.tell)
        cohort.call(self.go_on)

    @step(up={"embeddings": TensorField(("samples", "features"), by_sample=True), "weights": WeightsField()})
    def tell(self, client: Client, msg: Payload) -> Reply:
        client.fit()
        with torch.no_grad():
            rows = torch.cat([client.model.features(x) for x, _ in client.clean_pass()])
        return {"embeddings": rows, "weights": weights_of(client.model)}

    @step()
    def go_on(self, client: Client, msg: Payload) -> None:
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
    where = tmp_path_factory.mktemp("attacked")
    return {
        "open": run(where / "open", None),
        "noised": run(where / "noised", {"embeddings": {"clip": 1.0, "noise": 0.5}}),
        "means": run(where / "means", {"prototypes": {"clip": 1.0, "noise": 0.2}}, method="fedproto"),
        "weights": run(where / "weights", None, method="fedavg"),
    }


def test_pictures_come_back_from_embeddings(folders: dict[str, Path]) -> None:
    outcome = attack(folders["open"], steps=STEPS)
    facts, scores = outcome.facts, outcome.facts["scores"]
    assert (facts["client"], facts["field"], facts["round"], facts["protected"]) == ("1", "embeddings", 2, False)
    assert facts["model"] == "sent along as 'weights'" and facts["cosine"] == pytest.approx(1.0, abs=1e-4)
    assert set(scores) == {"nothing of the client", "the class of a row alone", "as it left"}
    assert scores["as it left"]["psnr"] > scores["the class of a row alone"]["psnr"] + 1.0
    assert scores["as it left"]["ssim"] > scores["the class of a row alone"]["ssim"]
    assert len(outcome.real) == facts["rows"] == len(outcome.seen[-1].pictures)


def test_noise_keeps_them_back(folders: dict[str, Path]) -> None:
    facts = attack(folders["noised"], steps=STEPS).facts
    scores = facts["scores"]
    assert facts["protected"] and facts["cosine"] < 0.5
    assert scores["without noise"]["psnr"] > scores["as it left"]["psnr"] + 3.0
    assert scores["without noise"]["ssim"] > scores["as it left"]["ssim"]
    # what is left is about what the class tells, or less
    assert scores["as it left"]["psnr"] < scores["the class of a row alone"]["psnr"] + 0.5


def test_the_same_attack_ends_alike(folders: dict[str, Path]) -> None:
    assert attack(folders["noised"], steps=5).facts == attack(folders["noised"], "1", "embeddings", steps=5).facts


def test_class_means_on_the_command_line(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "grid.png"
    asked = ["attack", str(folders["means"]), "--steps", "20", "-o", str(picture)]
    assert main([*asked, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["field"] == "prototypes" and facts["model"] == "as it was after round 2"
    assert facts["samples_behind_a_row"][1] > 1 and facts["picture"] == str(picture)
    with Image.open(picture) as image:
        assert image.format == "PNG" and min(image.size) > 100
    assert main(asked) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "without noise" in shown and "as it left" in shown and "The attacker has the client's model" in shown


@pytest.mark.parametrize(
    ("run_name", "options", "said"),
    [
        ("open", ["--client", "0"], "kept no replies of client 0; run it with evaluate.record_uploads=[0]"),
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
def test_what_cannot_be_attacked(
    folders: dict[str, Path], run_name: str, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attack", str(folders[run_name]), *options]) == 2
    assert said in capsys.readouterr().err


def test_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run folder"):
        attack(tmp_path)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 7, 9), (1, 28, 28)])
def test_the_decoder_learns_to_tell_rows_apart(shape: tuple[int, int, int]) -> None:
    """Two rows, two pictures."""
    with rng.seeded(1):
        decoder = Decoder(3, shape)
    rows = torch.tensor([[1.0, 0.0, 5.0], [0.0, 1.0, 5.0]])
    pictures = torch.stack([torch.zeros(shape), torch.ones(shape)])
    made = train(decoder, rows, pictures, lambda x, _: x, 60, torch.Generator().manual_seed(0)).pictures(rows)
    assert made.shape == pictures.shape
    assert float(made[0].mean()) < 0.2 and float(made[1].mean()) > 0.8
