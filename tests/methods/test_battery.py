"""Every method of the catalogue passes the battery, and the battery finds faulty methods."""

from __future__ import annotations

import ast
import io
import random
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet
from tests.small import SMALL
from tests.tiers import always_if

import polyfed.methods
from polyfed import catalogue, testing
from polyfed.core import (
    Client,
    Cohort,
    Method,
    Needs,
    Payload,
    Reply,
    Sends,
    Server,
    TensorField,
    TreeField,
    register,
    step,
)
from polyfed.errors import InputError

# fedktl needs a user's generator; tests/methods/test_fedktl_generator.py runs the battery on it with one
METHODS = [name for name in catalogue.methods() if name != "fedktl"]


# Checks that start worker processes, write run folders or read states again run on one method of each kind of
# messages, and on all methods with --all-methods. What they find in the other methods, state outside of `state` and
# hidden randomness, the checks in one process find too.
CHECKS_OF_ENGINES = ["serial_equals_pool", "resumed_equals_uninterrupted", "independent_of_memory_budget"]
REPRESENTATIVES = {
    "local": "no messages",
    "fedavg": "one model",
    "lg-fedavg": "a part of a model",
    "fedproto": "class tables",
    "feddistill": "a message of its own for each client",
    "heterofl": "slices of a model, a step at the end",
    "fedfree": "several calls in a round, some layers",
    "fedvtc": "several calls, a model that the method builds, a step at the end",
    "fedgen": "a model that the server trains",
    "scaffold": "state at clients and server that steps share",
    "dffke": "public images, replies of other clients",
}


def with_kind(method: str, check: str) -> ParameterSet:
    chosen = check not in CHECKS_OF_ENGINES or method in REPRESENTATIVES
    return pytest.param(method, check, marks=always_if(chosen))


def test_representatives_exist() -> None:
    assert set(REPRESENTATIVES) <= set(METHODS) and set(CHECKS_OF_ENGINES) <= set(testing.checks())


@pytest.mark.parametrize(
    ("method", "check"), [with_kind(method, check) for method in METHODS for check in testing.checks()]
)
def test_method_passes(method: str, check: str) -> None:
    kind, fields = catalogue.load(method), SMALL.get(method)
    if check in kind.skipped_checks:
        with pytest.raises(testing.CheckSkipped, match=r".{20}"):
            testing.run_check(check, kind, fields)
    else:
        testing.run_check(check, kind, fields)


# The battery on tables and texts, for methods that run on them: by default one check of each kind on representatives.
OTHER_CHECKS = [
    name
    for name in testing.checks()
    if name not in ("serial_equals_pool", "needs_checked_before_round_one", "non_slices_refused")
]
QUICK_CHECKS = ["independent_of_client_order", "only_tensors_and_scalars", "client_with_one_sample"]


def other_samples() -> list[ParameterSet]:
    parameters = []
    for method in METHODS:
        needs = catalogue.load(method).needs
        if needs.images or needs.sub_models:
            continue
        for check in OTHER_CHECKS:
            chosen = check in QUICK_CHECKS and method in REPRESENTATIVES
            parameters.append(pytest.param(method, check, marks=always_if(chosen), id=f"{method}-{check}"))
    return parameters


@pytest.mark.parametrize("samples", ["numbers", "tokens"])
@pytest.mark.parametrize(("method", "check"), other_samples())
def test_method_passes_on_tables_and_texts(method: str, check: str, samples: testing.SampleKind) -> None:
    testing.run_check(check, catalogue.load(method), SMALL.get(method), samples)


def test_small_settings_are_valid() -> None:
    for name, fields in SMALL.items():
        assert catalogue.make({"name": name, **fields}) != catalogue.make({"name": name})


@pytest.mark.parametrize("method", METHODS)
def test_skipped_checks_exist_and_have_a_reason(method: str) -> None:
    for check, reason in catalogue.load(method).skipped_checks.items():
        assert check in testing.checks(), f"{method} skips '{check}', which does not exist"
        assert len(reason) >= 20, f"{method} gives no reason for skipping '{check}'"


def test_no_method_skips_a_check() -> None:
    assert {
        name: dict(catalogue.load(name).skipped_checks) for name in METHODS if catalogue.load(name).skipped_checks
    } == {}


FIELDS: dict[str, list[dict[str, object]]] = {
    "fedavg": [{"weights": "uniform"}, {"buffers": "local"}],
    "lg-fedavg": [{"weights": "uniform"}],
    "feddistill": [{"metric": "mse"}, {"leave_one_out": False}, {"collect": "online", "min_class_count": 3}],
    "fedproto": [{"weights": "counts"}, {"collect": "online", "min_class_count": 3}, {"predict_with": "head"}],
}
SENSITIVE_CHECKS = ["independent_of_client_order", "independent_of_memory_budget", "evaluation_leaves_no_trace"]
SENSITIVE_CHECKS += ["invalid_messages_refused", "client_with_one_sample", "failing_clients_tolerated"]


@pytest.mark.parametrize("check", SENSITIVE_CHECKS)
@pytest.mark.parametrize(("method", "fields"), [(name, f) for name, variants in FIELDS.items() for f in variants])
def test_options_pass(method: str, fields: dict[str, object], check: str) -> None:
    testing.run_check(check, catalogue.load(method), fields)


def code_lines(source: str) -> int:
    """Count lines without blank lines, comments and docstrings."""
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in ignored:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def test_code_lines() -> None:
    assert (
        code_lines(
            '"""A module."""\n\n# why\nx = 1  # what\ny = (\n    2\n)\ndef f():\n    """It."""\n    return 3\n'
        )
        == 6
    )


PLAIN = {"local", "fedavg", "lg_fedavg", "feddistill", "fedproto"}  # no auxiliary model, no training on the server


METHODS_FOLDER = Path(polyfed.methods.__path__[0])
MAIN_FILES = sorted((*METHODS_FOLDER.glob("*.py"), *METHODS_FOLDER.glob("*/method.py")))


@pytest.mark.parametrize("path", MAIN_FILES, ids=lambda p: str(p.relative_to(METHODS_FOLDER)))
def test_the_main_file_of_a_method_is_short(path: Path) -> None:
    assert code_lines(path.read_text()) < (80 if path.stem in PLAIN else 200)


# Each method below is faulty in one way, and the named check must find it.


@dataclass(frozen=True)
class Sound(Method):
    """Sends the bias of the head. It is correct."""

    strength: float = 1.0

    sends = Sends(up="mean bias of the head", down="the sum of all")
    needs = Needs(same_head=True)

    def init(self, server: Server) -> None:
        server.state["sum"] = torch.zeros(4)

    def round(self, server: Server, cohort: Cohort) -> None:
        replies = cohort.call(self.train, shared={"sum": server.state["sum"]})
        server.state["sum"] = torch.stack([reply.tensor("bias") for reply in replies.values()]).sum(0)

    @step(down={"sum": TensorField((4,))}, up={"bias": TensorField((4,))})
    def train(self, client: Client, msg: Payload) -> Reply:
        client.fit()
        return {"bias": self.bias(client)}

    def bias(self, client: Client) -> torch.Tensor:
        return client.model.head.get_parameter("bias").detach().clone()


register("toy-sound")(Sound)

CALLS: list[str] = []  # hidden state


class ChangesMessage(Sound):
    @step(down={"sum": TensorField((4,))}, up={"bias": TensorField((4,))})
    def train(self, client: Client, msg: Payload) -> Reply:
        client.state["seen"] = msg.tensor("sum").add_(1).clone()
        return super().train(client, msg)


class CountsCalls(Sound):
    def bias(self, client: Client) -> torch.Tensor:
        CALLS.append(client.name)
        client.state["turn"] = len(CALLS)
        return super().bias(client)


class UsesGlobalNumpy(Sound):
    def bias(self, client: Client) -> torch.Tensor:
        return super().bias(client) + float(np.random.rand())


class UsesGlobalPython(Sound):
    def bias(self, client: Client) -> torch.Tensor:
        return super().bias(client) + random.random()


class UsesUnseededGenerator(Sound):
    def bias(self, client: Client) -> torch.Tensor:
        return super().bias(client) + float(np.random.default_rng().random())


class FreezesParameters(Sound):
    """FreezesParameters parameters, which a rebuilt client does not restore."""

    def bias(self, client: Client) -> torch.Tensor:
        client.model.backbone.requires_grad_(False)
        return super().bias(client)


class ChangesModelInPredict(Sound):
    def predict(self, client: Client, x: torch.Tensor) -> torch.Tensor:
        client.model.head.get_parameter("bias").data.add_(0.5)
        return super().predict(client, x)


class SendsList(Sound):
    @step(down={"sum": TensorField((4,))}, up={"bias": TreeField()})
    def train(self, client: Client, msg: Payload) -> Reply:
        client.fit()
        return {"bias": [1, 2]}  # type: ignore[dict-item]


class SendsGraph(Sound):
    def bias(self, client: Client) -> torch.Tensor:
        return client.model.head.get_parameter("bias")


class OmitsUpload(Sound):
    sends = Sends(down="the sum of all")


class OverstatesMessages(Sound):
    sends = Sends(up="mean bias of the head", down="the sum of all")

    def round(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.alone)

    @step()
    def alone(self, client: Client, msg: Payload) -> None:
        client.fit()


class NeedsMore(Sound):
    """Declares no requirement on heads, but needs equal ones."""

    needs = Needs()

    @step(down={"sum": TensorField((4,))}, up={"bias": TensorField((4,))})
    def train(self, client: Client, msg: Payload) -> Reply:
        if client.profile.head[0][0] != "weight":
            raise RuntimeError("this head has layers")
        return super().train(client, msg)

    def round(self, server: Server, cohort: Cohort) -> None:
        replies = cohort.call(self.train, shared={"sum": server.state["sum"]})
        if len(replies) < len(cohort):
            raise InputError("a client is missing")
        super().round(server, cohort)


class RequiresAllReplies(Sound):
    def round(self, server: Server, cohort: Cohort) -> None:
        replies = cohort.call(self.train, shared={"sum": server.state["sum"]})
        server.state["sum"] = torch.stack([replies[name].tensor("bias") for name in cohort.ids]).sum(0)


class RequiresTwoClasses(Sound):
    def bias(self, client: Client) -> torch.Tensor:
        if len(set(client.train.labels.tolist())) < 2:
            raise ValueError("one class only")
        return super().bias(client)


class RequiresTwoSamples(Sound):
    def bias(self, client: Client) -> torch.Tensor:
        if len(client.train) < 2:
            raise ValueError("one sample only")
        return super().bias(client)


class UsesOwnTrainingLoop(Sound):
    """Uses its own training loop, with a BatchNorm batch of one sample."""

    def bias(self, client: Client) -> torch.Tensor:
        client.model.train()
        for x, _ in client.train.batches(8):
            client.model(x)
        return super().bias(client)


class RequiresTwoClients(Sound):
    def round(self, server: Server, cohort: Cohort) -> None:
        if len(cohort) < 2:
            raise InputError("two clients are needed")
        super().round(server, cohort)


class TrainsUnselectedClients(Sound):
    """Trains clients that are not selected."""

    def round(self, server: Server, cohort: Cohort) -> None:
        super().round(server, cohort)
        Cohort(cohort._door, tuple("01234"[: len(server.roster)]), lambda names: None).call(
            self.train, shared={"sum": server.state["sum"]}
        )


class Tuples(Sound):
    widths: tuple[int, ...] = (1, 2)


for faulty in Sound.__subclasses__():
    register(f"toy-{faulty.__name__.lower()}")(dataclass(frozen=True)(faulty))


FAULTY_METHODS: list[tuple[type[Method], str]] = [
    (ChangesMessage, "inputs_not_modified"),
    (ChangesMessage, "independent_of_client_order"),
    (CountsCalls, "independent_of_client_order"),
    (CountsCalls, "serial_equals_pool"),
    (CountsCalls, "resumed_equals_uninterrupted"),
    (UsesGlobalNumpy, "global_random_state_untouched"),
    (UsesGlobalPython, "global_random_state_untouched"),
    (UsesUnseededGenerator, "global_random_state_untouched"),
    (FreezesParameters, "independent_of_memory_budget"),
    (ChangesModelInPredict, "evaluation_leaves_no_trace"),
    (SendsList, "only_tensors_and_scalars"),
    (SendsGraph, "only_tensors_and_scalars"),
    (OmitsUpload, "sends_matches_messages"),
    (OverstatesMessages, "sends_matches_messages"),
    (NeedsMore, "needs_checked_before_round_one"),
    (RequiresAllReplies, "failing_clients_tolerated"),
    (RequiresAllReplies, "failing_client_keeps_its_state"),
    (RequiresTwoClasses, "client_with_one_class"),
    (RequiresTwoSamples, "client_with_one_sample"),
    (UsesOwnTrainingLoop, "odd_last_batch"),
    (RequiresTwoClients, "one_client"),
    (TrainsUnselectedClients, "partial_participation"),
    (Tuples, "frozen_dataclass_of_json_fields"),
]


@pytest.mark.parametrize(("method", "check"), FAULTY_METHODS, ids=lambda value: getattr(value, "__name__", value))
def test_a_faulty_method_fails(method: type[Method], check: str) -> None:
    with pytest.raises(AssertionError):
        testing.run_check(check, method)


@pytest.mark.parametrize("check", sorted({check for _, check in FAULTY_METHODS}))
def test_a_sound_method_passes(check: str) -> None:
    testing.run_check(check, Sound)


class SkipsOneClient(Sound):
    skipped_checks = {"one_client": "it is about what clients have in common"}  # noqa: RUF012


register("toy-skips")(dataclass(frozen=True)(SkipsOneClient))


def test_a_skipped_check_raises_its_reason() -> None:
    with pytest.raises(testing.CheckSkipped, match="in common"):
        testing.run_check("one_client", SkipsOneClient)
    testing.run_check("client_with_one_class", SkipsOneClient)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: testing.run_check("one_clint", Sound), "did you mean 'one_client'"),
        (lambda: testing.run_check("one_client", Method), "no name"),
        (lambda: testing.run_check("one_client", int), "not a method"),  # type: ignore[arg-type]
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], None], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
