"""What is kept on request: likeness of clients' models, their features, and the spread of updates."""

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
from polyfed.core.probes import probe_samples
from polyfed.errors import InputError
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.local import Local
from polyfed.models.stage_outputs import stage_outputs
from polyfed.runs.checkpoint import CLIENT_STATES
from polyfed.testing.toy_federation import ToyFederation
from polyfed.training import Samples
from polyfed.training.samples import model_inputs

FEW = ((4, 4, 0, 0), (0, 4, 4, 0), (0, 0, 4, 4), (4, 0, 0, 4))
EVERYTHING = {"personal": False, "global": False, "cka": True, "features": True, "histograms": True}


class Kept:
    """Two runs, on the serial engine and on the pool, and one that keeps nothing."""

    def __init__(self, toy: ToyFederation) -> None:
        self.toy = toy
        toy.models = ["tiny-resnet10", "tiny-resnet18"]
        self.folders = {}
        self.results: dict[str, Any] = {}
        for name, engine, evaluate in (
            ("serial", "serial", EVERYTHING | {"every": 2}),
            ("pool", "pool", EVERYTHING | {"every": 2}),
            ("plain", "serial", {"personal": False, "global": False}),
        ):
            settings = toy.settings(
                FEW, splitting="stage", server_filter="inco", engine={"name": engine}, participation=0.75, rounds=3
            )
            self.folders[name] = toy.new_folder()
            self.results[name] = toy.experiment(settings | {"evaluate": evaluate}, self.folders[name])

    def tensors(self, run: str, file: str) -> dict[str, Tensor]:
        return load_file(self.folders[run] / "artifacts" / f"{file}.safetensors")

    def told(self, run: str, kind: str) -> list[dict[str, Any]]:
        lines = (self.folders[run] / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event.get("kind") == kind]


@pytest.fixture(scope="module")
def kept() -> Any:
    with ToyFederation(FedAvg, {}) as toy:
        yield Kept(toy)


def test_files_of_the_rounds_that_are_measured(kept: Kept) -> None:
    files = sorted(path.name for path in (kept.folders["serial"] / "artifacts").iterdir())
    assert files == [
        f"{kind}-00000{number}.safetensors" for kind in ("cka", "features", "updates") for number in (2, 3)
    ]
    assert not (kept.folders["plain"] / "artifacts").exists()


def test_looking_changes_nothing(kept: Kept) -> None:
    for same in ("state_hash", "bytes", "loss"):
        assert kept.results["serial"][same] == kept.results["plain"][same]


def test_the_pool_keeps_the_same_bits(kept: Kept) -> None:
    assert kept.results["pool"]["state_hash"] == kept.results["serial"]["state_hash"]
    for file in ("cka-000003", "features-000003", "updates-000003"):
        one, other = kept.tensors("serial", file), kept.tensors("pool", file)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_cka_is_between_the_models_that_the_participants_trained(kept: Kept) -> None:
    matrices = kept.tensors("serial", "cka-000003")
    event = kept.told("serial", "cka")[-1]
    assert event["layers"] == ["stage 1", "stage 2", "stage 3", "stage 4", "features"]
    assert set(matrices) == set(event["layers"])
    assert len(event["clients"]) == 3
    # The states that the last round left are still in the run folder: the same numbers from them, by the formula.
    made = kept.toy.federation(kept.toy.config(FEW, splitting="stage"))
    assert made.global_test is not None
    x = model_inputs(probe_samples(made.global_test).inputs)
    outputs = []
    for name in event["clients"]:
        model = made.make_client(name).model.eval()
        copy_into(model, last_state(kept.folders["serial"], name))
        outputs.append(stage_outputs(model, x))
    for layer, mean in zip(event["layers"], event["mean"], strict=True):
        expected = torch.tensor([[linear_cka(a[layer], b[layer]) for b in outputs] for a in outputs])
        assert torch.allclose(matrices[layer], expected.float(), atol=1e-4)
        assert mean == pytest.approx(float(expected[~torch.eye(3, dtype=torch.bool)].mean()), abs=1e-4)


def last_state(folder: Path, client: str) -> dict[str, Tensor]:
    """A client's weights as its newest state in the run folder has them."""
    states = folder / "checkpoint" / CLIENT_STATES
    newest = max(states.glob(f"{client}.*"), key=lambda path: int(path.suffix[1:]))
    return decode(newest.read_bytes()).weights("model")


def test_features_come_with_classes_and_clients(kept: Kept) -> None:
    found = kept.tensors("serial", "features-000003")
    n = 3 * 20  # three participants, and the toy federation has 20 test samples
    assert found["vectors"].shape[0] == len(found["classes"]) == len(found["clients"]) == n
    named = [int(name) for name in kept.told("serial", "cka")[-1]["clients"]]
    assert found["clients"].tolist() == [name for name in named for _ in range(20)]
    assert sorted(set(found["classes"].tolist())) == [0, 1, 2, 3]


def test_histograms_count_every_owned_entry_before_and_after_the_filter(kept: Kept) -> None:
    found = kept.tensors("serial", "updates-000003")
    anchor, target = (f"backbone.trunk.stages.0.{at}.conv.weight" for at in ("0.layers.1", "1.layers.0"))
    assert int(found[f"{anchor}.counts"].sum()) == 8 * 8 * 9
    assert f"{anchor}.before" not in found  # the filter leaves anchors alone
    assert int(found[f"{target}.before"].sum()) == int(found[f"{target}.counts"].sum()) == 8 * 8 * 9
    assert found[f"{target}.before"].tolist() != found[f"{target}.counts"].tolist()
    assert not any("running" in name or "num_batches" in name for name in found)
    assert len(found[f"{anchor}.edges"]) == len(found[f"{anchor}.counts"]) + 1


# what cannot be kept


def refused(method: Any, models: Any, **evaluate: bool) -> str:
    with ToyFederation(method, {}) as toy:
        toy.models = models
        made = toy.federation(toy.config(evaluate=evaluate))
        with pytest.raises(InputError) as caught:
            made.check(made.profiles())
    return str(caught.value)


def test_features_of_different_widths_have_no_common_map() -> None:
    said = refused(Local, ["tiny-cnn", "tiny-resnet10"], features=True)
    assert said.startswith("evaluate.features is true, but client 0 has 64 features and client 1 20;")


def test_a_method_without_a_server_model_has_no_update_to_count() -> None:
    assert "Local does not keep one server model" in refused(Local, "tiny4", histograms=True)


def test_without_test_samples_there_is_nothing_to_compare_on() -> None:
    from polyfed.config import EvaluateConfig
    from polyfed.federation import probes

    with pytest.raises(InputError, match=r"evaluate\.cka is true, but this dataset has no test part"):
        probes.check(EvaluateConfig(cka=True), Local(), (), None)


def test_the_samples_shown_are_spread_over_the_test_set() -> None:
    many = Samples(torch.zeros(1000, 1, 2, 2, dtype=torch.uint8), torch.arange(1000))
    shown = probe_samples(many).labels
    assert len(shown) == 256
    assert shown[0] == 0 and shown[-1] == 996
    assert int(shown.diff().max()) <= 4
    assert probe_samples(probe_samples(many)).labels.tolist() == shown.tolist()
