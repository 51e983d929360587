"""Runs with secure sums: the results of plain means, with uploads that say nothing about a single client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.methods.test_robust_aggregation import numbers
from tests.small import SMALL

from polyfed import catalogue
from polyfed.cli.inspect_command import inspect as inspect_command
from polyfed.config import parse
from polyfed.core.codec import decode, encode
from polyfed.core.engine import Answer, Call, Failure, Task
from polyfed.core.secure_sum import to_fixed
from polyfed.errors import InputError, RunError
from polyfed.testing.engine_wrappers import EngineWrapper, RecordingEngine
from polyfed.testing.rounds import Outcome
from polyfed.testing.toy_federation import ToyFederation

SECURE = {"name": "mean", "secure": True}
SUPPORTED = [("fedavg", "model"), ("lg-fedavg", "head"), ("fedproto", "prototypes"), ("fedl2g", "vectors")]


@dataclass
class DropOuts(EngineWrapper):
    """Clients that fail in a step, by the step's name; in some rounds only, if these are given."""

    failing: dict[str, tuple[str, ...]]
    rounds: tuple[int, ...] | None = None

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        for answer in self.inner.call(call, shared, tasks):
            failed = any(answer.client in self.failing.get(name, ()) for name in call.steps)
            failed &= self.rounds is None or call.round in self.rounds
            yield Answer(answer.client, failure=Failure("timeout", "no answer")) if failed else answer


def close(a: Outcome, b: Outcome, key: str) -> bool:
    one, other = (torch.cat(numbers(outcome.server[key])) for outcome in (a, b))
    return torch.allclose(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("method", "key"), SUPPORTED)
def test_secure_sums_give_the_plain_means_and_hide_replies(method: str, key: str) -> None:
    with ToyFederation(catalogue.load(method), SMALL.get(method, {})) as toy:
        recorder = RecordingEngine()
        secure = toy.run(toy.config(aggregation=SECURE, rounds=1), wrap=recorder).checked()
        again = toy.run(toy.config(aggregation=SECURE, rounds=1)).checked()
        plain = toy.run(toy.config(rounds=1)).checked()
    assert close(secure, plain, key)
    assert secure.hash == again.hash  # new keys, the same results; no secret stays in a client's state
    sent = [set(decode(message.frames[0])) for message in recorder.up]
    assert set().union(*sent) == {"keys", "shares", "masked", "opened"}
    # the masked numbers are uniformly distributed, whatever the client sent
    replies = [decode(message.frames[0]) for message in recorder.up]
    masked = [reply.tensor("masked").numpy().view(np.uint64) for reply in replies if "masked" in reply]
    assert len({len(vector) for vector in masked}) == 1
    joined = np.concatenate(masked) / 2.0**64
    assert abs(joined.mean() - 0.5) < 6 / np.sqrt(12 * len(joined))
    unmasked = to_fixed(np.array([1.0]), 5)
    assert unmasked / 2.0**64 < 1e-9  # numbers without masks are small, and would show in the mean


def test_drop_outs_before_and_after_their_reply() -> None:
    with ToyFederation(catalogue.load("lg-fedavg"), {}) as toy:
        config = toy.config(aggregation=SECURE, rounds=1)
        early = toy.run(config, wrap=DropOuts({"masked_train": ("2",)}))  # its pairwise masks are recovered
        late = toy.run(config, wrap=DropOuts({"secure_unmask": ("2",)}))  # its own mask is recovered
        at_keys = toy.run(config, wrap=DropOuts({"secure_keys": ("2",)}))
        at_shares = toy.run(config, wrap=DropOuts({"secure_shares": ("2",)}))
        without = toy.run(toy.config(rounds=1), wrap=DropOuts({"train": ("2",)}))
        complete = toy.run(toy.config(rounds=1)).checked()
        for outcome in (early, at_keys, at_shares):
            assert close(outcome, without, "head") and not close(outcome, complete, "head")
        assert close(late, complete, "head")
        assert {failure["client"] for failure in early.failures} == {"2"}
        for step in ("masked_train", "secure_unmask"):  # 4 of 5 clients are needed
            with pytest.raises(RunError, match=r"needs? 4 .*but 3 answered"):
                toy.run(config, wrap=DropOuts({step: ("1", "2")}))


def test_clients_refuse_a_sum_of_too_few() -> None:
    @dataclass
    class CuriousEngine(EngineWrapper):
        """A server that asks for the masks of one client."""

        def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
            asked = encode({"alive": tasks[0].client}).data if call.steps == ("secure_unmask",) else shared
            return self.inner.call(call, asked, tasks)

    with (
        ToyFederation(catalogue.load("lg-fedavg"), {}) as toy,
        pytest.raises(RunError, match="sum of too few clients"),
    ):
        toy.run(toy.config(aggregation=SECURE, rounds=1), wrap=CuriousEngine())


def test_clients_clip_their_updates_before_they_are_masked() -> None:
    norm = 0.01
    with ToyFederation(catalogue.load("fedavg"), {}) as toy:
        toy.models = ["tiny-mlp"]
        rule = {"name": "norm-clipped", "norm": norm, "secure": True}
        clipped = toy.run(toy.config(aggregation=rule, rounds=1, models={"group": toy.models})).checked()
        plain = toy.run(toy.config(rounds=1, models={"group": toy.models})).checked()
        federation = toy.federation(toy.config(models={"group": toy.models}))
        before = torch.cat(numbers(federation.check(federation.profiles()).state["model"]))
    change, free = (torch.cat(numbers(outcome.server["model"])) - before for outcome in (clipped, plain))
    assert change.norm() <= norm * 1.001 and free.norm() > 2 * norm


def refusal(method: str, **changed: Any) -> str:
    with ToyFederation(catalogue.load(method), SMALL.get(method, {})) as toy:
        federation = toy.federation(toy.config(aggregation=SECURE, **changed))
        with pytest.raises(InputError) as error:
            federation.check(federation.profiles())
    return str(error.value)


def test_what_needs_single_replies_is_refused() -> None:
    assert "the server of FedTGP uses replies of single clients, which secure sums hide" in refusal("fedtgp")
    assert "the server of Scaffold needs 'control' of every single client" in refusal("scaffold")
    assert "the server of FedNova needs 'normaliser' of every single client" in refusal("fednova")
    assert "with splitting: architecture the server needs to know" in refusal("fedavg", splitting="architecture")
    assert "needs at least 3 clients in a round, but 2 take part" in refusal("fedavg", participation=0.4)
    for name in ("median", "krum"):
        with pytest.raises(InputError, match=f"{name} compares replies of single clients, which secure: true hides"):
            parse({"method": "fedavg", "aggregation": {"name": name, "secure": True}})
    with pytest.raises(InputError, match="clients clip their updates themselves; give norm"):
        parse({"method": "fedavg", "aggregation": {"name": "norm-clipped", "secure": True}})


def test_pool_equals_serial_and_inspect_says_that_replies_were_hidden(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ToyFederation(catalogue.load("fedproto"), {}) as toy:
        serial = toy.run(toy.config(aggregation=SECURE)).checked()
        settings = toy.settings(aggregation=SECURE, engine={"name": "pool", "workers": 2})
        result = toy.experiment(settings, tmp_path / "run")
    assert result["state_hash"] == serial.hash
    inspect_command(tmp_path / "run")
    shown = " ".join(capsys.readouterr().out.split())
    assert "Secure sums: the server saw sums over clients only" in shown and "sees the exact values" not in shown
