"""FedAvg and LG-FedAvg: the mathematics of their averages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polyfed.core.client import weights_of
from polyfed.core.payload import Payload
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.lg_fedavg import LGFedAvg
from polyfed.methods.local import Local
from polyfed.testing.rounds import InMemoryClients, run_rounds
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation

LABELS = ([0, 1, 2], [0, 0, 1, 2, 2])


def close(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[k].double(), b[k].double(), rtol=1e-5, atol=1e-7) for k in a)


def test_no_local_steps_leave_the_server_unchanged(linears: Any) -> None:
    make = linears(settings={"epochs": 0})
    outcome = run_rounds(InMemoryClients(FedAvg(), make.several([0, 1], [1, 2]))).checked()
    model: Any = outcome.server["model"]
    assert all(torch.equal(model[name], t) for name, t in weights_of(make.model()).items())


def test_one_full_batch_step_is_one_central_step(linears: Any) -> None:
    # sum_k (n_k / n) (w - lr grad_k) = w - lr sum_k (n_k / n) grad_k = w - lr grad of the mean loss over the union.
    make = linears()
    outcome = run_rounds(InMemoryClients(FedAvg(), make.several(*LABELS))).checked()
    model = make.model()
    data = [make.client(str(k), labels).train for k, labels in enumerate(LABELS)]
    x = torch.cat([d.inputs for d in data]).float() / 255
    y = torch.cat([d.labels for d in data])
    F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for p in model.parameters():
            assert p.grad is not None
            p -= 0.1 * p.grad
    assert close(outcome.server["model"], weights_of(model))


def test_uniform_weights_give_the_unweighted_mean(linears: Any) -> None:
    # With w_k what client k trained: samples gives (3 w_0 + 5 w_1) / 8, uniform gives (w_0 + w_1) / 2.
    make = linears()
    trained: list[Any] = []
    for k, labels in enumerate(LABELS):
        client = make.client(str(k), labels)
        client.round, client.step = 1, "train"
        trained.append(FedAvg().train(client, Payload({"model": weights_of(make.model())}))["model"])
    a, b = trained
    for weights, (p, q) in {"samples": (3 / 8, 5 / 8), "uniform": (0.5, 0.5)}.items():
        outcome = run_rounds(InMemoryClients(FedAvg(weights=weights), make.several(*LABELS))).checked()  # type: ignore[arg-type]
        assert close(outcome.server["model"], {name: p * a[name] + q * b[name] for name in a})


def test_the_order_of_clients_does_not_matter(linears: Any) -> None:
    make = linears()
    forth = run_rounds(InMemoryClients(FedAvg(), make.several(*LABELS)), 3).checked()
    back = run_rounds(InMemoryClients(FedAvg(), make.several(*LABELS)[::-1]), 3).checked()
    assert close(forth.server["model"], back.server["model"])


def test_the_mean_is_over_clients_that_replied(linears: Any) -> None:
    # A client that is not in the round has no share in the mean: with one participant the mean is its model.
    outcome = run_rounds(
        InMemoryClients(FedAvg(), linears().several(*LABELS)), selected=lambda number: ("1",)
    ).checked()
    model: Any = outcome.server["model"]
    assert all(torch.equal(model[name], own) for name, own in outcome.client("1").weights("model").items())


def test_statistics_of_batchnorm_are_averaged_with_the_weights(linears: Any) -> None:
    # One batch each, so with momentum 0.1: running = 0.9 * initial + 0.1 * batch statistics; then the mean over
    # clients by samples. The counter takes the largest value, it is no quantity to average.
    make = linears(norm=True)
    outcome = run_rounds(InMemoryClients(FedAvg(), make.several(*LABELS))).checked()
    server: Any = outcome.server["model"]
    mean, var = torch.zeros(3), torch.zeros(3)
    for k, labels in enumerate(LABELS):
        client = make.client(str(k), labels)
        f = client.model.backbone[1](client.train.inputs.float().flatten(1) / 255).detach()
        mean += len(labels) / 8 * 0.1 * f.mean(0)
        var += len(labels) / 8 * (0.9 + 0.1 * f.var(0, unbiased=True))
    assert torch.allclose(server["backbone.2.running_mean"], mean, rtol=1e-5)
    assert torch.allclose(server["backbone.2.running_var"], var, rtol=1e-5)
    assert server["backbone.2.num_batches_tracked"].item() == 1
    assert server["backbone.2.num_batches_tracked"].dtype == torch.int64


def test_local_statistics_stay_at_the_client(linears: Any) -> None:
    make = linears(norm=True)
    outcome = run_rounds(InMemoryClients(FedAvg(buffers="local"), make.several(*LABELS)), 2).checked()
    alone = run_rounds(
        InMemoryClients(FedAvg(buffers="local"), make.several(*LABELS)), 2, selected=lambda n: ("0",)
    ).checked()
    after = [outcome.client(k).weights("model")["backbone.2.running_mean"] for k in "01"]
    assert not torch.equal(after[0], after[1])
    # in the first round the statistics of client 0 come from its own batch, whoever else took part
    first = run_rounds(InMemoryClients(FedAvg(buffers="local"), make.several(*LABELS))).checked()
    lonely = run_rounds(
        InMemoryClients(FedAvg(buffers="local"), make.several(*LABELS)), selected=lambda n: ("0",)
    ).checked()
    name = "backbone.2.running_mean"
    assert torch.equal(first.client("0").weights("model")[name], lonely.client("0").weights("model")[name])
    assert outcome.client("0").weights("model")["backbone.2.num_batches_tracked"].item() == 2
    assert alone.client("0").weights("model")["backbone.2.num_batches_tracked"].item() == 2


def test_evaluation_uses_the_servers_model() -> None:
    with ToyFederation(FedAvg, {}) as toy:
        counts = toy.run(evaluate=True).checked().accuracy["global"]
    assert len(set(counts.values())) == 1  # one model, one test set: all clients get the same right


# LG-FedAvg


def test_heads_are_averaged_and_extractors_are_not(linears: Any) -> None:
    seeds = ["a", "b", "c"]
    make = linears(features=5)
    makers = make.several(*LABELS, [1, 2], seeds=seeds)
    outcome = run_rounds(InMemoryClients(LGFedAvg(), makers), 2, selected=lambda n: ("0", "1")).checked()
    assert "2" not in outcome.ledger.digests  # the idle client keeps extractor and head
    heads = [{n: t for n, t in outcome.client(k).weights("model").items() if n.startswith("head.")} for k in "01"]
    mean = {n.removeprefix("head."): (3 * heads[0][n] + 5 * heads[1][n]) / 8 for n in heads[0]}
    assert close(outcome.server["head"], mean)
    first = [outcome.client(k).weights("model")["backbone.1.weight"] for k in "01"]
    assert not torch.allclose(first[0], first[1])


def test_participants_start_from_the_servers_head_and_their_own_extractor(linears: Any) -> None:
    make = linears(settings={"epochs": 0})
    makers = make.several(*LABELS, [1, 2], seeds=["a", "b", "c"])
    outcome = run_rounds(InMemoryClients(LGFedAvg(), makers), selected=lambda n: ("1", "2")).checked()
    for k, seed in (("1", "b"), ("2", "c")):
        received = outcome.client(k).weights("model")
        assert torch.equal(received["head.weight"], make.model("a").head.weight)
        assert torch.equal(received["backbone.1.weight"], make.model(seed).backbone[1].weight)


def test_with_all_layers_in_the_head_it_is_fedavg(linears: Any) -> None:
    make = linears(whole_head=True, norm=True)
    shared = run_rounds(InMemoryClients(LGFedAvg(), make.several(*LABELS)), 3).checked()
    whole = run_rounds(InMemoryClients(FedAvg(), make.several(*LABELS)), 3).checked()
    head: Any = shared.server["head"]
    model: Any = whole.server["model"]
    assert {f"head.{name}" for name in head} == set(model)
    assert all(torch.equal(model[f"head.{name}"], tensor) for name, tensor in head.items())


@pytest.mark.parametrize("method", [FedAvg, LGFedAvg])
def test_one_client_is_local_training(method: Any) -> None:
    with ToyFederation(method, {}) as toy:
        config = toy.config(CLASS_COUNTS[:1], rounds=3, models={"group": ["tiny-resnet"], "shared_init": True})
        federated, local = toy.run(config).checked(), toy.run(config, method=Local()).checked()
    assert federated.ledger.digests == local.ledger.digests
    assert local.ledger.digests


# Local training


def test_local_training_does_not_depend_on_other_clients() -> None:
    with ToyFederation(Local, {}) as toy:
        among = toy.run().checked()
        alone = toy.run(selected=lambda number: ("3",)).checked()
    assert among.ledger.digests["3"] == alone.ledger.digests["3"]
    assert set(alone.ledger.digests) == {"3"}
    assert all(not stats.up and not stats.down for stats in among.round_stats)
