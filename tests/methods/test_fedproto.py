"""FedProto: its loss, its prototypes and its prediction."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polyfed import catalogue
from polyfed.core.class_tables import ClassTable
from polyfed.core.client import weights_of
from polyfed.core.payload import Payload
from polyfed.errors import InputError
from polyfed.methods.fedproto import FedProto
from polyfed.methods.local import Local
from polyfed.testing.rounds import InMemoryClients, run_rounds
from polyfed.testing.toy_federation import ToyFederation

LABELS = [0, 0, 1, 2, 2, 2]
SHARED = ([0, 0, 1], [0, 1, 1], [0, 2])


def table(rows: dict[int, list[float]]) -> ClassTable:
    return ClassTable.of({label: torch.tensor(row) for label, row in rows.items()}, 3)


def ready(client: Any) -> Any:
    client.round, client.step = 1, "train"
    return client


def test_one_step_by_hand(linears: Any) -> None:
    # CE + lambda * mean over samples of known classes of |f - P_y|^2 / d, with d = 3 features.
    rows = {0: [0.5, -0.5, 0.0], 2: [1.0, 1.0, 1.0]}
    ours, theirs = ready(linears().client("0", LABELS)), linears().client("0", LABELS)
    FedProto(guidance=2.0).train(ours, Payload({"prototypes": table(rows)}))
    x, y = theirs.train.inputs.float() / 255, theirs.train.labels
    f = theirs.model.features(x)
    pulls = [((f[i] - torch.tensor(rows[int(c)])) ** 2).sum() / 3 for i, c in enumerate(y) if int(c) in rows]
    assert len(pulls) == 5
    (F.cross_entropy(theirs.model.head(f), y) + 2.0 * torch.stack(pulls).mean()).backward()  # type: ignore[no-untyped-call]
    for name, p in theirs.model.named_parameters():
        assert torch.allclose(weights_of(ours.model)[name], p.detach() - 0.1 * p.grad, rtol=1e-5, atol=1e-7)


def test_no_gradient_if_features_equal_their_prototypes(linears: Any) -> None:
    # An extractor with weight 0 gives its bias as the feature of everything; with that as every prototype the extra
    # term is 0 and so is its gradient, however strong it is.
    ours, theirs = ready(linears().client("0", LABELS)), ready(linears().client("0", LABELS))
    with torch.no_grad():
        for client in (ours, theirs):
            client.model.backbone[1].weight.zero_()
    bias = ours.model.backbone[1].bias.tolist()
    FedProto(guidance=1000.0).train(ours, Payload({"prototypes": table(dict.fromkeys(range(3), bias))}))
    theirs.fit()
    for name, tensor in weights_of(theirs.model).items():
        assert torch.allclose(weights_of(ours.model)[name], tensor, atol=1e-6)


def test_prediction_is_the_nearest_prototype_by_brute_force(linears: Any) -> None:
    client = linears(classes=5).client("0", [0, 1, 2, 3, 4] * 8)
    x = client.train.inputs.float() / 255
    with torch.no_grad():
        some = client.model.features(x).tolist()
        prototypes = {0: some[0], 1: some[7], 4: some[12]}
        client.state["prototypes"] = table(prototypes)
        received = FedProto().predict(client, x).argmax(1).tolist()
        for feature, answer in zip(client.model.features(x).tolist(), received, strict=True):
            far = {c: sum((a - b) ** 2 for a, b in zip(feature, p, strict=True)) for c, p in prototypes.items()}
            assert answer == min(far, key=lambda c: far[c])
        assert set(received) == {0, 1, 4}
        head = client.model(x)
        assert torch.equal(FedProto(predict_with="head").predict(client, x), head)
        assert torch.equal(FedProto().also_predict()["head"](client, x), head)
        client.state["prototypes"] = ClassTable.empty(3).without_counts()
        assert torch.equal(FedProto().predict(client, x), head)  # before the first aggregation
        client.state.clear()
        assert torch.equal(FedProto().predict(client, x), head)


def test_an_unreported_class_keeps_its_prototype(linears: Any) -> None:
    makers = linears(settings={"epochs": 0}).several(*SHARED, seeds=["a", "b", "c"])
    first = run_rounds(InMemoryClients(FedProto(), makers), 1, selected=lambda n: ("2",)).checked()
    both = run_rounds(
        InMemoryClients(FedProto(), makers), 2, selected=lambda n: ("2",) if n == 1 else ("0", "1")
    ).checked()
    before, after = first.server["prototypes"], both.server["prototypes"]
    assert isinstance(before, ClassTable) and isinstance(after, ClassTable)
    assert before.classes.tolist() == [0, 2] and after.classes.tolist() == [0, 1, 2]
    kept, was = after.row(2), before.row(2)
    assert kept is not None and was is not None and torch.equal(kept, was)
    changed, old = after.row(0), before.row(0)
    assert changed is not None and old is not None and not torch.allclose(changed, old)


def test_counts_give_the_mean_over_the_union_and_uniform_the_mean_of_means(linears: Any) -> None:
    # Equal extractors: the prototype of a class by counts is the mean feature over all samples of the union.
    make = linears(settings={"epochs": 0})
    clients = [make.client(str(k), labels) for k, labels in enumerate(SHARED)]
    f = torch.cat([c.model.features(c.train.inputs.float() / 255).detach() for c in clients])
    y = torch.cat([c.train.labels for c in clients])
    by_counts = (
        run_rounds(InMemoryClients(FedProto(weights="counts"), make.several(*SHARED))).checked().server["prototypes"]
    )
    uniform = run_rounds(InMemoryClients(FedProto(), make.several(*SHARED))).checked().server["prototypes"]
    assert isinstance(by_counts, ClassTable) and isinstance(uniform, ClassTable)
    for c in range(3):
        assert torch.allclose(by_counts.values[c], f[y == c].mean(0), rtol=1e-5, atol=1e-6)
    # class 1: one sample at client 0 and two at client 1, which have equal weights
    means = [f[:3][y[:3] == 1].mean(0), f[3:6][y[3:6] == 1].mean(0)]
    assert torch.allclose(uniform.values[1], (means[0] + means[1]) / 2, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(uniform.values[1], by_counts.values[1], rtol=1e-3)


def test_prototypes_are_computed_after_or_during_training(linears: Any) -> None:
    # One full batch: features seen in the last of two steps are those before it, a clean pass sees those after it.
    for collect, steps in (("after", 2), ("online", 1)):
        client = ready(linears(settings={"epochs": 2}).client("0", LABELS))
        reply = FedProto(collect=collect).train(  # type: ignore[arg-type]
            client, Payload({"prototypes": ClassTable.empty(3).without_counts()})
        )
        fresh = ready(linears(settings={"epochs": steps}).client("0", LABELS))
        fresh.fit()
        f = fresh.model.features(fresh.train.inputs.float() / 255).detach()
        received = reply["prototypes"]
        assert isinstance(received, ClassTable) and received.counts is not None
        assert received.counts.tolist() == [2, 1, 3]
        for c in range(3):
            assert torch.allclose(received.values[c], f[fresh.train.labels == c].mean(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fields", [{}, {"weights": "counts"}, {"collect": "online"}])
def test_without_guidance_models_equal_local_training(fields: dict[str, Any]) -> None:
    given = {"guidance": 0.0, "allow_degenerate": True, **fields}
    with ToyFederation(FedProto, given) as toy:
        config = toy.config(rounds=3, train={"batch_size": 4, "lr": 0.05, "epochs": 2})
        guided, local = toy.run(config).checked(), toy.run(config, method=Local()).checked()
        for k in "01234":
            mine, theirs = guided.client(k).weights("model"), local.client(k).weights("model")
            assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_guidance_changes_the_model(linears: Any) -> None:
    makers = linears().several(*SHARED, seeds=["a", "b", "c"])
    guided = run_rounds(InMemoryClients(FedProto(guidance=5.0), makers), 2).checked()
    local = run_rounds(InMemoryClients(Local(), makers), 2).checked()
    name = "backbone.1.weight"
    assert not torch.allclose(guided.client("0").weights("model")[name], local.client("0").weights("model")[name])


@pytest.mark.parametrize("name", ["fedproto", "feddistill"])
def test_no_guidance_requires_allow_degenerate(name: str) -> None:
    with pytest.raises(
        InputError, match=r"^method.guidance is 0, which switches Fed\w+ off; .*allow_degenerate: true$"
    ):
        catalogue.make({"name": name, "guidance": 0.0})
    catalogue.make({"name": name, "guidance": 0.0, "allow_degenerate": True})
