"""FedDistill: its loss, the leave-one-out mean, and rows of unreported classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polyfed.core.class_tables import ClassTable
from polyfed.core.client import weights_of
from polyfed.core.codec import decode
from polyfed.core.payload import Payload
from polyfed.methods.feddistill import FedDistill, soft_cross_entropy
from polyfed.methods.local import Local
from polyfed.testing.engine_wrappers import RecordingEngine
from polyfed.testing.rounds import InMemoryClients, run_rounds
from polyfed.testing.toy_federation import ToyFederation
from polyfed.training.losses import masked_mean

LABELS = [0, 0, 1, 2, 2, 2]


def table(rows: dict[int, list[float]], width: int = 3) -> ClassTable:
    return ClassTable.of({label: torch.tensor(row) for label, row in rows.items()}, width)


def trained(linears: Any, method: Any, outputs: ClassTable, **options: Any) -> dict[str, torch.Tensor]:
    """Return the model after one step of a client that received a table."""
    client = linears(**options).client("0", LABELS)
    client.round, client.step = 1, "train"
    method.train(client, Payload({"outputs": outputs}))
    return weights_of(client.model)


def test_one_step_by_hand(linears: Any) -> None:
    # lambda * mean over the samples of known classes of H(softmax G_y, softmax z), plus the mean cross-entropy.
    rows = {0: [2.0, -1.0, 0.0], 2: [0.0, 0.0, 3.0]}
    got = trained(linears, FedDistill(guidance=0.7), table(rows))
    client = linears().client("0", LABELS)
    x, y = client.train.inputs.float() / 255, client.train.labels
    z = client.model(x)
    log = z.log_softmax(1)
    known = [i for i, label in enumerate(y.tolist()) if label in rows]
    pulls = [-(torch.tensor(rows[int(y[i])]).softmax(0) * log[i]).sum() for i in known]
    (F.cross_entropy(z, y) + 0.7 * torch.stack(pulls).mean()).backward()  # type: ignore[no-untyped-call]
    for name, p in client.model.named_parameters():
        assert torch.allclose(got[name], p.detach() - 0.1 * p.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("collect", ["after", "online"])
def test_probabilities_are_averaged_and_distilled_without_another_softmax(linears: Any, collect: Any) -> None:
    row = [0.7, 0.2, 0.1]
    logits = [float(value) for value in torch.tensor(row).log()]
    everywhere = dict.fromkeys(range(3), row)
    method = FedDistill(outputs="probabilities", collect=collect)
    got = trained(linears, method, table(everywhere))
    same = trained(linears, FedDistill(), table(dict.fromkeys(range(3), logits)))  # softmax of logs: the same target
    assert all(torch.allclose(got[name], same[name], atol=1e-6) for name in same)
    client = linears().client("0", LABELS)
    client.round, client.step = 1, "train"
    sent = method.train(client, Payload({"outputs": table(everywhere)}))["outputs"]
    assert isinstance(sent, ClassTable) and torch.allclose(sent.values.sum(1), torch.ones(3), atol=1e-6)


def test_no_gradient_if_the_output_equals_the_target() -> None:
    z = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 9.0]], requires_grad=True)
    soft_cross_entropy(z, z.detach().softmax(1)).sum().backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    assert float(z.grad.abs().max()) < 1e-6


def test_training_converges_to_the_target(linears: Any) -> None:
    # A model whose head has weight 0 gives its bias b for every input. With b as the row of every class the extra
    # term pulls nowhere, however strong it is.
    make = linears()
    client = make.client("0", LABELS)
    client.round, client.step = 1, "train"
    with torch.no_grad():
        client.model.head.weight.zero_()
    bias = client.model.head.bias.detach().clone()
    FedDistill(guidance=50.0).train(client, Payload({"outputs": table({c: bias.tolist() for c in range(3)})}))
    plain = make.client("0", LABELS)
    plain.round, plain.step = 1, "train"
    with torch.no_grad():
        plain.model.head.weight.zero_()
    plain.fit()
    for name, tensor in weights_of(plain.model).items():
        assert torch.allclose(weights_of(client.model)[name], tensor, atol=1e-5)


def test_a_constant_added_to_all_logits_of_a_table_changes_nothing(linears: Any) -> None:
    rows = {c: [0.5 * c, 1.0, -1.0] for c in range(3)}
    lifted = {c: [v + 7 for v in row] for c, row in rows.items()}
    first, second = (trained(linears, FedDistill(), table(r)) for r in (rows, lifted))
    assert all(torch.allclose(first[n], second[n], rtol=1e-5, atol=1e-7) for n in first)
    third = trained(linears, FedDistill(metric="mse"), table(lifted))
    assert not all(torch.allclose(first[n], third[n], rtol=1e-4) for n in first)


def test_without_targets_it_is_local_training(linears: Any) -> None:
    got = trained(linears, FedDistill(guidance=9.0), ClassTable.empty(3).without_counts())
    client = linears().client("0", LABELS)
    client.round, client.step = 1, "train"
    client.fit()
    assert all(torch.equal(got[name], t) for name, t in weights_of(client.model).items())


def test_the_masked_mean_ignores_masked_samples() -> None:
    values = torch.tensor([1.0, 5.0, 9.0], requires_grad=True)
    assert masked_mean(values, torch.tensor([True, False, True])).item() == 5.0
    nothing = masked_mean(values, torch.tensor([False, False, False]))
    nothing.backward()  # type: ignore[no-untyped-call]
    assert nothing.item() == 0.0 and values.grad is not None and not values.grad.any()


def tables_down(linears: Any, method: FedDistill, labels: Any, turns: Any) -> list[dict[str, dict[int, list[float]]]]:
    """Return what every client received in every round; models never change, so the tables are known."""
    recorder = RecordingEngine()
    run_rounds(
        InMemoryClients(method, linears(settings={"epochs": 0}).several(*labels, seeds=["a", "b", "c"])),
        len(turns),
        wrap=recorder,
        selected=lambda number: turns[number - 1],
    ).checked()
    rounds: list[dict[str, dict[int, list[float]]]] = []
    messages = iter(recorder.down)
    for turn in turns:
        observed = {}
        for _ in turn:
            message = next(messages)
            got = next(t for frame in message.frames for n, t in decode(frame).items() if n == "outputs")
            assert isinstance(got, ClassTable)
            observed[message.client] = dict(zip(got.classes.tolist(), got.values.tolist(), strict=True))
        rounds.append(observed)
    return rounds


def own_rows(linears: Any, labels: Any) -> list[dict[int, torch.Tensor]]:
    """Return the class means of every client's outputs, computed directly."""
    actual = []
    for k, (seed, mine) in enumerate(zip("abc", labels, strict=True)):
        client = linears().client(str(k), mine, seed)
        z = client.model(client.train.inputs.float() / 255).detach()
        actual.append({c: z[client.train.labels == c].mean(0) for c in set(mine)})
    return actual


def close(rows: dict[int, list[float]], wanted: dict[int, torch.Tensor]) -> bool:
    return rows.keys() == wanted.keys() and all(
        torch.allclose(torch.tensor(rows[c]), wanted[c], rtol=1e-5, atol=1e-6) for c in rows
    )


SHARED = ([0, 0, 1], [0, 1, 1], [0, 2])


def test_each_client_receives_the_mean_of_the_others(linears: Any) -> None:
    # Class 0 is reported by all three, class 1 by clients 0 and 1, class 2 by client 2 alone.
    a, b, c = own_rows(linears, SHARED)
    first, second = tables_down(linears, FedDistill(), SHARED, [("0", "1", "2")] * 2)
    assert all(rows == {} for rows in first.values())
    assert close(second["0"], {0: (b[0] + c[0]) / 2, 1: b[1], 2: c[2]})
    assert close(second["1"], {0: (a[0] + c[0]) / 2, 1: a[1], 2: c[2]})
    assert close(second["2"], {0: (a[0] + b[0]) / 2, 1: (a[1] + b[1]) / 2})  # no other client has class 2: no target
    # the same by the paper's formula, (M g - g_k) / (M - 1)
    g = (a[0] + b[0] + c[0]) / 3
    assert torch.allclose(torch.tensor(second["0"][0]), (3 * g - a[0]) / 2, rtol=1e-4, atol=1e-6)


def test_without_leave_one_out_all_receive_the_mean_of_all(linears: Any) -> None:
    a, b, c = own_rows(linears, SHARED)
    _, second = tables_down(linears, FedDistill(leave_one_out=False), SHARED, [("0", "1", "2")] * 2)
    for rows in second.values():
        assert close(rows, {0: (a[0] + b[0] + c[0]) / 3, 1: (a[1] + b[1]) / 2, 2: c[2]})


def test_classes_that_no_client_reports_keep_their_rows(linears: Any) -> None:
    # Round 1: clients 0 and 2. Round 2: client 1 alone, which reports classes 0 and 1: these stand on its rows alone,
    # while class 2 keeps the row of client 2. Round 3: client 0 receives class 0 and 1 from client 1, class 2 from 2.
    _, b, c = own_rows(linears, SHARED)
    rounds = tables_down(linears, FedDistill(), SHARED, [("0", "2"), ("1",), ("0", "1")])
    a = own_rows(linears, SHARED)[0]
    assert close(rounds[1]["1"], {0: (a[0] + c[0]) / 2, 1: a[1], 2: c[2]})
    assert close(rounds[2]["0"], {0: b[0], 1: b[1], 2: c[2]})
    assert close(rounds[2]["1"], {2: c[2]})


def test_small_classes_are_not_sent(linears: Any) -> None:
    made = InMemoryClients(FedDistill(min_class_count=2), linears().several(*SHARED))
    outcome = run_rounds(made).checked()
    sent = {name: t.classes.tolist() for name, t in outcome.server.items() if isinstance(t, ClassTable)}
    assert sent == {"0": [0], "1": [1]}


def test_online_means_are_means_of_training_outputs(linears: Any) -> None:
    # One full batch: the outputs seen while training are those of the model before its only step.
    outcome = run_rounds(
        InMemoryClients(FedDistill(collect="online"), linears().several(*SHARED, seeds=["a", "b", "c"]))
    )
    for name, rows in zip("012", own_rows(linears, SHARED), strict=True):
        kept = outcome.checked().server[name]
        assert isinstance(kept, ClassTable)
        assert close(dict(zip(kept.classes.tolist(), kept.values.tolist(), strict=True)), rows)


def test_online_means_of_several_epochs_count_every_sample_once() -> None:
    with ToyFederation(FedDistill, {"collect": "online"}) as toy:
        toy.run(toy.config(train={"batch_size": 4, "epochs": 2})).checked()  # replies with more samples are refused


@pytest.mark.parametrize("fields", [{}, {"metric": "mse"}, {"leave_one_out": False}])
def test_without_guidance_models_equal_local_training(linears: Any, fields: dict[str, Any]) -> None:
    makers = linears(norm=True, settings={"batch_size": 2}).several(*SHARED, seeds=["a", "b", "c"])
    guided = run_rounds(
        InMemoryClients(FedDistill(guidance=0.0, allow_degenerate=True, **fields), makers), 3
    ).checked()
    local = run_rounds(InMemoryClients(Local(), makers), 3).checked()
    for k in "012":
        mine, theirs = guided.client(k).weights("model"), local.client(k).weights("model")
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
