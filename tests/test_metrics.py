"""Metrics of runs: bit-identical on every engine, equal to scikit-learn on the predictions, and listed as uploads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from polyfed.core.client import copy_into
from polyfed.core.codec import decode, encode
from polyfed.core.evaluation import Evaluation
from polyfed.core.evaluation_reply import read_reply
from polyfed.core.message_header import read_header
from polyfed.errors import InputError, PayloadError
from polyfed.federation.round_metrics import measured, worst_decile
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.fedproto import FedProto
from polyfed.methods.local import Local
from polyfed.runs.checkpoint import CLIENT_STATES
from polyfed.runs.folder import RunFolder
from polyfed.testing.toy_federation import ToyFederation
from polyfed.training.metrics import class_scores

ALL = ["accuracy", "balanced_accuracy", "macro_f1", "auroc", "log_loss", "calibration_error", "confusion"]


class MeasuredRuns:
    """Local training with all metrics on two engines, and without metrics."""

    def __init__(self, toy: ToyFederation) -> None:
        self.toy = toy
        self.folders = {name: toy.new_folder() for name in ("serial", "pool", "plain")}
        self.settings = toy.settings(evaluate={"metrics": ALL})
        self.results: dict[str, Any] = {}
        for name, engine in (("serial", "serial"), ("pool", "pool"), ("plain", "serial")):
            settings = self.settings | {"engine": {"name": engine}}
            if name == "plain":
                settings["evaluate"] = {}
            self.results[name] = toy.experiment(settings, self.folders[name])

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.folders["serial"] / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.fixture(scope="module")
def runs() -> Any:
    with ToyFederation(Local, {}) as toy:
        yield MeasuredRuns(toy)


def test_metrics_are_bit_identical_on_the_pool(runs: MeasuredRuns) -> None:
    assert runs.results["serial"]["metrics"] == runs.results["pool"]["metrics"]
    one, other = (
        load_file(runs.folders[e] / "artifacts" / "confusion-000002.safetensors") for e in ("serial", "pool")
    )
    assert one.keys() == other.keys() == {"personal", "global"}
    assert all(torch.equal(one[kind], other[kind]) for kind in one)


def test_metrics_do_not_change_the_training(runs: MeasuredRuns) -> None:
    for same in ("state_hash", "bytes", "loss"):
        assert runs.results["serial"][same] == runs.results["plain"][same]
    for kind in ("personal", "global"):
        assert runs.results["serial"]["accuracy"][kind] == runs.results["plain"]["accuracy"][kind]
        always = {"worst_decile", "client_mean"} if kind == "personal" else {"worst_decile"}
        assert runs.results["plain"]["metrics"][kind].keys() == always


def test_the_client_mean_gives_every_client_the_same_weight() -> None:
    # One of one and one of three right: 2 of 4 samples, but (1 + 1/3) / 2 over clients. A client without samples is
    # left out, and global accuracy is the plain mean anyway.
    counts = {"personal": {"0": (1, 1), "1": (1, 3), "2": (0, 0)}, "global": {"0": (1, 2), "1": (2, 2), "2": (0, 0)}}
    accuracies, metrics = measured(Evaluation(counts))
    assert accuracies["personal"].value == 0.5 and accuracies["global"].value == 0.75
    assert metrics["personal"]["client_mean"].value == pytest.approx(2 / 3)
    assert "client_mean" not in metrics["global"]


def test_metrics_are_those_of_scikit_learn_on_the_clients_predictions(runs: MeasuredRuns) -> None:
    from sklearn import metrics as sk  # here: it takes half a second to import

    result = RunFolder(runs.folders["serial"]).result()
    assert result is not None
    federation = runs.toy.federation(runs.toy.config(evaluate={"metrics": ALL}))
    expected: dict[str, list[float]] = {"auroc": [], "log_loss": [], "macro_f1": [], "balanced_accuracy": []}
    pooled = torch.zeros(4, 4, dtype=torch.int64)
    for name in federation.names:
        client = federation.make_client(name)
        copy_into(client.model, last_weights(runs.folders["serial"], name))
        client.model.eval()
        scores, y = class_scores(client.model, client.test), client.test.labels.numpy()
        probabilities, predicted = scores.double().softmax(1).numpy(), scores.argmax(1).numpy()
        expected["auroc"].append(float(sk.roc_auc_score(y, probabilities, multi_class="ovr")))
        expected["log_loss"].append(float(sk.log_loss(y, probabilities)))
        expected["macro_f1"].append(float(sk.f1_score(y, predicted, average="macro")))
        expected["balanced_accuracy"].append(float(sk.balanced_accuracy_score(y, predicted)))
        pooled += torch.from_numpy(sk.confusion_matrix(y, predicted, labels=range(4)))
    for name, values in expected.items():
        measured = result.metrics["personal"][name]
        assert measured.by_client == pytest.approx(values)
        # every client of the toy federation has the same number of test samples
        assert measured.final == pytest.approx(sum(values) / len(values))
        assert measured.by_round[-1] == measured.final and len(measured.by_round) == 2
    assert result.confusion["personal"] == pooled.tolist()


def last_weights(folder: Path, client: str) -> dict[str, torch.Tensor]:
    states = folder / "checkpoint" / CLIENT_STATES
    newest = max(states.glob(f"{client}.*"), key=lambda path: int(path.suffix[1:]))
    return decode(newest.read_bytes()).weights("model")


def test_every_metric_is_listed_as_an_upload(runs: MeasuredRuns) -> None:
    uploads = [event for event in runs.events("left") if event["step"] == "evaluation"]
    fields = {field for event in uploads for field in event["fields"]}
    assert fields == {f"{kind} {name}" for kind in ("personal", "global") for name in ALL[1:]}
    counted = [event for event in uploads if "personal confusion" in event["fields"]]
    assert len(counted) == 5  # once per client, in the last round
    assert counted[0]["fields"]["personal confusion"] == 4 * 4 * 8
    assert counted[0]["shapes"]["personal confusion"] == "4 x 4"


def test_predictions_by_prototypes_have_no_probabilities() -> None:
    with ToyFederation(FedProto, {}) as toy:
        folder = toy.new_folder()
        result = toy.experiment(toy.settings(evaluate={"metrics": ["auroc", "macro_f1"]}), folder)
        notes = [event["message"] for event in RunFolder(folder).events() if event["event"] == "note"]
    assert result["metrics"]["personal"].keys() == {"worst_decile", "client_mean", "macro_f1"}
    assert result["metrics"]["personal by head"].keys() == {"worst_decile", "client_mean", "auroc", "macro_f1"}
    sentence = "auroc: not measured for fedproto, whose predictions are not probabilities; "
    assert sentence + "they are measured for predictions by head" in notes


def test_clients_with_the_same_model_share_one_evaluation_on_the_common_test_set() -> None:
    with ToyFederation(FedAvg, {}) as toy:
        result = toy.experiment(toy.settings(evaluate={"metrics": ["macro_f1", "confusion"], "personal": False}))
    by_client = result["metrics"]["global"]["macro_f1"]["by_client"]
    assert len(by_client) == 5 and len(set(by_client)) == 1
    assert sum(map(sum, result["metrics"]["global"]["confusion"])) == 5 * 20


def test_worst_decile_is_the_mean_of_the_worst_tenth() -> None:
    assert worst_decile([0.5, 0.25, 0.75]) == 0.25  # at least one client
    assert worst_decile([k / 100 for k in range(20, 0, -1)]) == pytest.approx((0.01 + 0.02) / 2)
    assert worst_decile([k / 100 for k in range(11)]) == pytest.approx((0.00 + 0.01) / 2)  # rounded up


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"personal auroc": 1.5}, "reports 'personal auroc' as 1.5"),
        ({"personal auroc": -0.5}, "reports 'personal auroc' as -0.5"),
        ({"personal auroc": float("nan")}, "reports 'personal auroc' as nan"),
        ({"personal auroc": "high"}, "is a str, not a number"),
        ({"personal macro_f1": 0.5}, "which was not requested"),
        ({"personal confusion": torch.zeros(2, 2, dtype=torch.int64)}, "has the shape"),
        ({"personal confusion": torch.zeros(3, 3)}, "the type torch.float32"),
        ({"personal confusion": torch.zeros(3, 3, dtype=torch.int64)}, "counts 0 samples of 3"),
    ],
)
def test_invalid_metrics_are_refused(fields: Any, message: str) -> None:
    frame = encode({"personal": {"correct": 1, "total": 3}, **fields}).data
    with pytest.raises(PayloadError, match=message):
        read_reply(frame, read_header(frame), ["personal"], ["auroc", "confusion"], 3)


def test_undefined_metrics_are_null() -> None:
    frame = encode({"personal": {"correct": 1, "total": 3}, "personal auroc": None}).data
    reply = read_reply(frame, read_header(frame), ["personal"], ["auroc"], 3)
    assert reply.metrics == {"personal": {"auroc": None}}


def test_confusion_matrices_are_refused_with_differential_privacy() -> None:
    privacy = {"prototypes": {"clip": 1.0, "noise": 1.0}}
    with ToyFederation(FedProto, {}) as toy:
        federation = toy.federation(toy.config(evaluate={"metrics": ["confusion"]}, privacy=privacy))
        with pytest.raises(InputError, match=r"evaluate\.metrics has confusion and privacy is set"):
            federation.check(federation.profiles())


def test_an_unknown_metric_is_refused() -> None:
    with ToyFederation(Local, {}) as toy, pytest.raises(InputError, match=r"evaluate\.metrics\.0 is 'auc'.*'auroc'"):
        toy.config(evaluate={"metrics": ["auc"]})
