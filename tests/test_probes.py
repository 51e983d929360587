"""Probes: CKA similarity of client models, features, and update histograms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from polyfed.analysis.cka import linear_cka
from polyfed.core.client import copy_into
from polyfed.core.codec import decode
from polyfed.core.model_probes import probe_samples
from polyfed.errors import InputError
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.local import Local
from polyfed.models.stage_outputs import stage_outputs
from polyfed.runs.checkpoint import CLIENT_STATES
from polyfed.testing.toy_federation import ToyFederation
from polyfed.training import Samples
from polyfed.training.samples import model_inputs

FEW = ((4, 4, 0, 0), (0, 4, 4, 0), (0, 0, 4, 4), (4, 0, 0, 4))
ALL_PROBES = {"personal": False, "global": False, "cka": True, "features": True, "histograms": True}


class ProbedRuns:
    """Two runs with all probes, on the serial engine and on the pool, and one run without probes."""

    def __init__(self, toy: ToyFederation) -> None:
        self.toy = toy
        toy.models = ["tiny-resnet10", "tiny-resnet18"]
        self.folders = {}
        self.results: dict[str, Any] = {}
        for name, engine, evaluate in (
            ("serial", "serial", ALL_PROBES | {"every": 2}),
            ("pool", "pool", ALL_PROBES | {"every": 2}),
            ("plain", "serial", {"personal": False, "global": False}),
        ):
            settings = toy.settings(
                FEW, splitting="stage", server_filter="inco", engine={"name": engine}, participation=0.75, rounds=3
            )
            self.folders[name] = toy.new_folder()
            self.results[name] = toy.experiment(settings | {"evaluate": evaluate}, self.folders[name])

    def tensors(self, run: str, file: str) -> dict[str, Tensor]:
        return load_file(self.folders[run] / "artifacts" / f"{file}.safetensors")

    def events(self, run: str, kind: str) -> list[dict[str, Any]]:
        lines = (self.folders[run] / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event.get("kind") == kind]


@pytest.fixture(scope="module")
def runs() -> Any:
    with ToyFederation(FedAvg, {}) as toy:
        yield ProbedRuns(toy)


def test_artifacts_of_evaluated_rounds(runs: ProbedRuns) -> None:
    files = sorted(path.name for path in (runs.folders["serial"] / "artifacts").iterdir())
    assert files == [
        f"{kind}-00000{number}.safetensors" for kind in ("cka", "features", "updates") for number in (2, 3)
    ]
    assert not (runs.folders["plain"] / "artifacts").exists()


def test_probes_do_not_change_results(runs: ProbedRuns) -> None:
    for same in ("state_hash", "bytes", "loss"):
        assert runs.results["serial"][same] == runs.results["plain"][same]


def test_probes_on_the_pool_are_bit_identical(runs: ProbedRuns) -> None:
    assert runs.results["pool"]["state_hash"] == runs.results["serial"]["state_hash"]
    for file in ("cka-000003", "features-000003", "updates-000003"):
        one, other = runs.tensors("serial", file), runs.tensors("pool", file)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_cka_compares_the_trained_models_of_the_participants(runs: ProbedRuns) -> None:
    matrices = runs.tensors("serial", "cka-000003")
    event = runs.events("serial", "cka")[-1]
    assert event["layers"] == ["stage 1", "stage 2", "stage 3", "stage 4", "features"]
    assert set(matrices) == set(event["layers"])
    assert len(event["clients"]) == 3
    # recompute CKA by its formula from the client states in the run folder
    federation = runs.toy.federation(runs.toy.config(FEW, splitting="stage"))
    assert federation.global_test is not None
    x = model_inputs(probe_samples(federation.global_test).inputs)
    outputs = []
    for name in event["clients"]:
        model = federation.make_client(name).model.eval()
        copy_into(model, last_state(runs.folders["serial"], name))
        outputs.append(stage_outputs(model, x))
    for layer, mean in zip(event["layers"], event["mean"], strict=True):
        expected = torch.tensor([[linear_cka(a[layer], b[layer]) for b in outputs] for a in outputs])
        assert torch.allclose(matrices[layer], expected.float(), atol=1e-4)
        assert mean == pytest.approx(float(expected[~torch.eye(3, dtype=torch.bool)].mean()), abs=1e-4)


def last_state(folder: Path, client: str) -> dict[str, Tensor]:
    """Return a client's weights from its newest state in the run folder."""
    states = folder / "checkpoint" / CLIENT_STATES
    newest = max(states.glob(f"{client}.*"), key=lambda path: int(path.suffix[1:]))
    return decode(newest.read_bytes()).weights("model")


def test_features_have_classes_and_clients(runs: ProbedRuns) -> None:
    artifact = runs.tensors("serial", "features-000003")
    n = 3 * 20  # three participants, and the toy federation has 20 test samples
    assert artifact["vectors"].shape[0] == len(artifact["classes"]) == len(artifact["clients"]) == n
    participants = [int(name) for name in runs.events("serial", "cka")[-1]["clients"]]
    assert artifact["clients"].tolist() == [name for name in participants for _ in range(20)]
    assert sorted(set(artifact["classes"].tolist())) == [0, 1, 2, 3]


def test_histograms_count_every_entry_before_and_after_the_filter(runs: ProbedRuns) -> None:
    artifact = runs.tensors("serial", "updates-000003")
    anchor, target = (f"backbone.trunk.stages.0.{at}.conv.weight" for at in ("0.layers.1", "1.layers.0"))
    assert int(artifact[f"{anchor}.counts"].sum()) == 8 * 8 * 9
    assert f"{anchor}.before" not in artifact  # the filter leaves anchors alone
    assert int(artifact[f"{target}.before"].sum()) == int(artifact[f"{target}.counts"].sum()) == 8 * 8 * 9
    assert artifact[f"{target}.before"].tolist() != artifact[f"{target}.counts"].tolist()
    assert not any("running" in name or "num_batches" in name for name in artifact)
    assert len(artifact[f"{anchor}.edges"]) == len(artifact[f"{anchor}.counts"]) + 1


# probes that are not possible


def check_error(method: Any, models: Any, **evaluate: bool) -> str:
    with ToyFederation(method, {}) as toy:
        toy.models = models
        federation = toy.federation(toy.config(evaluate=evaluate))
        with pytest.raises(InputError) as caught:
            federation.check(federation.profiles())
    return str(caught.value)


def test_features_need_one_feature_width() -> None:
    message = check_error(Local, ["tiny-cnn", "tiny-resnet10"], features=True)
    assert message.startswith("evaluate.features is true, but client 0 has 64 features and client 1 20;")


def test_histograms_need_one_server_model() -> None:
    assert "Local does not have one server model" in check_error(Local, "tiny4", histograms=True)


def test_probes_need_a_common_test_split() -> None:
    from polyfed.config import EvaluateConfig
    from polyfed.federation import analysis_probes

    with pytest.raises(InputError, match=r"evaluate\.cka is true, but this dataset has no common test split"):
        analysis_probes.check_probes(EvaluateConfig(cka=True), Local(), (), None)


def test_probed_samples_are_spread_over_the_test_set() -> None:
    many = Samples(torch.zeros(1000, 1, 2, 2, dtype=torch.uint8), torch.arange(1000))
    shown = probe_samples(many).labels
    assert len(shown) == 256
    assert shown[0] == 0 and shown[-1] == 996
    assert int(shown.diff().max()) <= 4
    assert probe_samples(probe_samples(many)).labels.tolist() == shown.tolist()
