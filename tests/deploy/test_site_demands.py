"""What a site demands: privacy of fields, limits over all runs on its data, and error texts without values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.deploy.direct_link import OWN_SETTING, own_data
from torch import Tensor

from polyfed.cli.app import main
from polyfed.config import parse
from polyfed.core import Client, Method, Payload, Reply, TableField, register, step
from polyfed.core.class_tables import ClassTable
from polyfed.core.codec import encode
from polyfed.core.engine import Answer, Call, Failure, Task
from polyfed.deploy.privacy_ledger import FILE
from polyfed.deploy.reply_cache import to_bytes
from polyfed.deploy.site import Site
from polyfed.deploy.site_config import public_config
from polyfed.deploy.site_demands import Demands, FieldDemand, parse_demands
from polyfed.deploy.site_errors import ERRORS, MAX_LOG, SENTENCES, SETUP_FAILED, log_error
from polyfed.deploy.site_setup import own_data_setup
from polyfed.engines import framing
from polyfed.engines.flower import SiteMessage, parse_reply
from polyfed.errors import InputError, PayloadError, PolyfedError, StateError
from polyfed.guards import accountant
from polyfed.guards.clipping import PrivacyError

NOISED: dict[str, Any] = {"prototypes": {"clip": 1.0, "noise": 3.0}}


def ana(folder: Path, *require: str, allow: list[str] | None = None) -> Site:
    """Start the site ana with its own data, or start it again."""
    if not (folder / "data").exists():
        own_data(folder / "data", 0)
    setup = own_data_setup("ana", folder / "data", "tiny-mlp", folder / "state")
    return Site("ana", folder / "state", setup, allow, demands=parse_demands(require))


def hello(site: Site, run: str = "one", **settings: Any) -> str | None:
    """Send the handshake of a run. Return the site's refusal, if any."""
    config = parse({**OWN_SETTING, **settings})
    reply = site.handle(SiteMessage({"do": "hello", "run": run, "config": public_config(config.to_dict())}))
    return reply.header.get("refused")


def ask(site: Site, call: Call, run: str = "one", rows: float = 0.0) -> Answer:
    """Send a call to the site, from its initial state."""
    shared = encode({"prototypes": ClassTable.of({1: torch.full((64,), rows)}, 64).without_counts()}).data
    message = call_message(call, run, shared)
    return parse_reply("ana", site.handle(message), message.digest())


def call_message(call: Call, run: str, shared: bytes) -> SiteMessage:
    parts = {"call": framing.call_to_json(call), "task": framing.task_to_json(Task("ana", 0))}
    return SiteMessage({"do": "call", "run": run, **parts}, {"shared": shared})


def train(number: int) -> Call:
    return Call(number, number, ("train",), ("train",))


def evaluate(number: int) -> Call:
    return Call(-number, number, measures=("personal",))


def refusal(answer: Answer) -> str:
    assert isinstance(answer.failure, Failure) and answer.failure.kind == "refused" and answer.frame == b""
    return answer.failure.message


def test_demands_are_read_from_options_and_files(tmp_path: Path) -> None:
    (tmp_path / "demands.yaml").write_text("model: {epsilon: 2.5, delta: 1e-6}\nmax_releases: 7\n")
    demands = parse_demands(["prototypes: {epsilon: 8}", str(tmp_path / "demands.yaml"), "epsilon_budget: 9"])
    assert demands == Demands({"prototypes": FieldDemand(8.0), "model": FieldDemand(2.5, 1e-6)}, 7, None, 9.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prototypes", "neither a file nor of the form"),
        ("prototypes: 8", r"give an epsilon, such as 'prototypes: \{epsilon: 8\}'"),
        ("prototypes: {epsilom: 8, epsilon: 8}", "did you mean 'epsilon'"),
        ("prototypes: {epsilon: 0}", "prototypes.epsilon is 0; a number above 0"),
        ("prototypes: {epsilon: 1, delta: 1}", "must be below 1"),
        ("max_releases: -1", "max_releases is -1; a whole number of at least 0"),
        ("epsilon_budget: .inf", "epsilon_budget is inf; a number above 0"),
        ("a: [", "--require cannot be read"),
    ],
)
def test_wrong_demands_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_demands([text])


def test_join_checks_demands_before_anything_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["join", "--server", "localhost:1", "--insecure", "--name", "ana", "--rehearsal"]
    assert main([*command, "--state", str(tmp_path / "state"), "--epsilon-budget", "-1"]) == 2
    assert "epsilon_budget is -1.0; a number above 0 is allowed" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("field", "privacy", "reason"),
    [
        ("prototypes", None, "for 'prototypes'; the config does not protect it"),
        ("prototypes", {"clip": 1.0, "epsilon": 9.0}, "for 'prototypes'; the config gives 9"),
        ("prototypes", {"clip": 1.0, "epsilon": 8.0, "delta": 1e-3}, "the config gives 1"),  # more at delta 1e-5
        ("prototypes", {"epsilon": 1.0, "sensitivity": "measured"}, "the config does not protect it"),
        ("prototype", {"clip": 1.0, "epsilon": 8.0}, "'prototype', which fedproto does not upload; did you mean"),
        ("prototypes", {"clip": 1.0, "epsilon": 8.0}, None),
    ],
)
def test_a_site_requires_privacy(
    field: str, privacy: dict[str, Any] | None, reason: str | None, tmp_path: Path
) -> None:
    refused = hello(ana(tmp_path, f"{field}: {{epsilon: 8}}"), privacy=privacy and {"prototypes": privacy})
    assert (refused is None) == (reason is None)
    assert reason is None or (refused is not None and reason in refused)
    assert (tmp_path / "state" / "one").exists() == (reason is None)


def test_noise_without_an_end_is_refused_beyond_the_epsilon(tmp_path: Path) -> None:
    """With `noise` the number of releases is open: their mean would approach the exact value."""
    allowed = next(n for n in range(1, 99) if accountant.epsilon([(3.0, n + 1)], 1e-5) > 2.6)
    assert allowed == 3
    site = ana(tmp_path, "prototypes: {epsilon: 2.6}")
    assert hello(site, privacy=NOISED) is None
    frames = [ask(site, train(n)).frame for n in range(1, allowed + 1)]
    assert all(frames) and len(set(frames)) == allowed
    for one in (site, ana(tmp_path, "prototypes: {epsilon: 2.6}")):  # also after a restart
        sentence = refusal(ask(one, train(allowed + 1)))
        assert sentence.endswith("at most 2.6 at delta 1e-05 for 'prototypes'; one more upload would exceed it")
        assert ask(one, train(2)).frame == frames[1]  # the same bytes again cost nothing
    assert hello(site, "two", privacy=NOISED) is None
    assert ask(site, train(1), "two").frame  # the demand holds for each run


def test_a_budget_holds_for_all_runs_on_the_same_files(tmp_path: Path) -> None:
    """Another seed and other class names are another run and other labels, but the same data."""
    site = ana(tmp_path, "epsilon_budget: 2.6")
    assert hello(site, privacy=NOISED) is None
    for number in (1, 2):
        answer = ask(site, train(number))
        assert answer.frame and answer.trained == ()  # the loss depends on single samples
    other = {"privacy": NOISED, "seed": 5, "data": {**OWN_SETTING["data"], "class_names": list("abcd")}}
    site = ana(tmp_path, "epsilon_budget: 2.6")
    assert hello(site, "two", **other) is None
    assert ask(site, train(1), "two").frame
    refused = refusal(ask(site, train(2), "two"))
    assert "budget of 2.6 for all runs on its data; another upload would exceed it" in refused
    np.savez(tmp_path / "data" / "train.npz", x=np.zeros((6, 8, 8), np.uint8), y=np.arange(6) % 3)
    fresh = ana(tmp_path, "epsilon_budget: 2.6")
    assert hello(fresh, "three", privacy=NOISED) is None
    assert ask(fresh, train(1), "three").frame  # other data


def test_a_budget_does_not_allow_unprotected_uploads(tmp_path: Path) -> None:
    site = ana(tmp_path, "epsilon_budget: 100")
    assert hello(site) is None
    sentence = "site ana has an epsilon budget, but 'prototypes' of run one depends on single samples"
    assert refusal(ask(site, train(1))).startswith(sentence)
    free = ana(tmp_path)
    assert ask(free, train(1)).frame and ask(free, train(1)).trained
    late = ana(tmp_path, "epsilon_budget: 100")  # what has left cannot be undone
    assert hello(late, "two", privacy=NOISED) is None
    assert refusal(ask(late, train(1), "two")).startswith(sentence)


def test_limits_of_uploads_and_evaluations(tmp_path: Path) -> None:
    demands = ("max_releases: 2", "max_evaluations: 2")
    site = ana(tmp_path, *demands)
    assert hello(site) is None
    assert ask(site, train(1)).frame and ask(site, evaluate(1)).frame
    assert ask(site, evaluate(1)).frame  # the same question
    site = ana(tmp_path, *demands)
    assert hello(site, "two") is None
    assert ask(site, train(1), "two").frame and ask(site, evaluate(1), "two").frame
    refused = refusal(ask(site, train(2), "two"))
    assert refused == "site ana uploads 'prototypes' at most 2 times and has reached the limit"
    assert "evaluates models that are not its own at most 2 times" in refusal(ask(site, evaluate(1), "two", rows=1.0))
    assert hello(site, "three", method={"name": "local"}) is None
    assert ask(site, evaluate(1), "three").failure is None  # its own model


def test_inspect_shows_the_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = ana(tmp_path)
    for run in ("one", "two"):
        assert hello(site, run, privacy=NOISED) is None
        assert ask(site, train(1), run).frame
    assert main(["inspect", str(tmp_path / "state")]) == 0
    cost = accountant.epsilon([(3.0, 2)], 1e-5)
    shown = " ".join(capsys.readouterr().out.split())
    assert "Privacy ledger: in all 2 runs on data" in shown and f"has epsilon {cost:.4g} at delta 1e-05." in shown


def test_a_damaged_ledger_is_not_forgotten(tmp_path: Path) -> None:
    site = ana(tmp_path)
    assert hello(site, privacy=NOISED) is None
    assert ask(site, train(1)).frame
    (tmp_path / "state" / FILE).write_text((tmp_path / "state" / FILE).read_text()[:-9])
    assert hello(ana(tmp_path), "two", privacy=NOISED) is not None
    assert "privacy-ledger.json is damaged" in (tmp_path / "state" / ERRORS).read_text()


# error texts

RAISED: dict[str, type[Exception]] = {
    "value": ValueError,
    "payload": PayloadError,
    "input": InputError,
    "state": StateError,
    "privacy": PrivacyError,
    "polyfed": PolyfedError,
}


@register("toy-leaking")
@dataclass(frozen=True)
class Leaking(Method):
    """Raises errors with values of samples in their texts."""

    error: str = "value"

    @step(up={"prototypes": TableField()})
    def train(self, client: Client, msg: Payload) -> Reply:
        raise RAISED[self.error](f"secret sample: {client.train.inputs[0].sum()}")

    def predict(self, client: Client, x: Tensor) -> Tensor:
        raise RAISED[self.error](f"secret sample: {client.train.inputs[0].sum()}")


@pytest.mark.parametrize("error", RAISED)
def test_values_in_error_texts_stay_at_the_site(error: str, tmp_path: Path) -> None:
    site = ana(tmp_path, allow=["prototypes", "evaluation"])
    assert hello(site, method={"name": "toy-leaking", "error": error}) is None
    for call in (train(1), evaluate(1)):
        reply = site.handle(call_message(call, "one", encode({}).data))
        assert b"secret" not in to_bytes(reply) and b"Traceback" not in to_bytes(reply)
        assert reply.header["answer"]["failure"]["message"] in SENTENCES.values()
    events = [json.loads(line) for line in (tmp_path / "state" / "one" / "events.jsonl").read_text().splitlines()]
    failures = [event for event in events if event["event"] == "failure"]
    assert len(failures) == 2 and all("secret sample: " in event["message"] for event in failures)


def test_errors_of_data_stay_at_the_site(tmp_path: Path) -> None:
    own_data(tmp_path / "data", 0)
    np.savez(tmp_path / "data" / "train.npz", x=np.zeros((2, 8, 8), np.uint8), y=np.array([0, 7]))
    assert hello(ana(tmp_path)) == SETUP_FAILED
    assert "found label 7" in (tmp_path / "state" / ERRORS).read_text()


def test_the_error_log_is_bounded(tmp_path: Path) -> None:
    for text in ("first", "x" * MAX_LOG, "last"):
        log_error(tmp_path, text)
    assert (tmp_path / ERRORS).read_text().endswith(" last\n") and (tmp_path / f"{ERRORS}.old").exists()
