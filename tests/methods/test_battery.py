"""Every method of the catalogue passes every check; and the checks find what they are there to find."""

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
from tests import small

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

# fedktl refuses to be made without a user's generator; tests/methods/test_fedktl.py runs the battery on it with one
METHODS = [name for name in catalogue.methods() if name != "fedktl"]
# Fields that only say how much work is done: no check depends on them, and with the defaults they take seconds.
SMALL: dict[str, dict[str, object]] = {
    "ccvr": {"virtual": 30, "epochs": 2},
    "dffke": small.DFFKE,
    "fedgen": {"generator_steps": 5, "hidden": 32},
    "fedktl-lite": {"server_epochs": 3, "latent_width": 16},
    "fedlatent": {"samples_per_class": 6},
    "fedtgp": {"server_epochs": 3},
    "fedvtc": {"samples_per_class": 6, "finetune_epochs": 1},
}


@pytest.mark.parametrize("check", testing.checks())
@pytest.mark.parametrize("method", METHODS)
def test_method_passes(method: str, check: str) -> None:
    kind, fields = catalogue.load(method), SMALL.get(method)
    if check in kind.excused:
        with pytest.raises(testing.Excused, match=r".{20}"):
            testing.run_check(check, kind, fields)
    else:
        testing.run_check(check, kind, fields)


def test_small_fields_are_those_of_methods_that_exist() -> None:
    for name, fields in SMALL.items():
        assert catalogue.make({"name": name, **fields}) != catalogue.make({"name": name})


@pytest.mark.parametrize("method", METHODS)
def test_excuses_name_a_check_and_a_reason(method: str) -> None:
    for check, reason in catalogue.load(method).excused.items():
        assert check in testing.checks(), f"{method} is excused from '{check}', which does not exist"
        assert len(reason) >= 20, f"{method} gives no real reason for its excuse from '{check}'"


def test_nobody_is_excused_so_far() -> None:
    assert {name: dict(catalogue.load(name).excused) for name in METHODS if catalogue.load(name).excused} == {}


FIELDS: dict[str, list[dict[str, object]]] = {
    "fedavg": [{"weights": "uniform"}, {"buffers": "local"}],
    "lg-fedavg": [{"weights": "uniform"}],
    "feddistill": [{"metric": "mse"}, {"leave_one_out": False}, {"collect": "online", "min_class_count": 3}],
    "fedproto": [{"weights": "counts"}, {"collect": "online", "min_class_count": 3}, {"predict_with": "head"}],
}
TELLING = ["order_of_clients_is_irrelevant", "little_memory_changes_nothing", "evaluation_leaves_no_trace"]
TELLING += ["wrong_messages_refused_by_name", "client_with_one_sample", "failing_clients_survived"]


@pytest.mark.parametrize("check", TELLING)
@pytest.mark.parametrize(("method", "fields"), [(name, f) for name, several in FIELDS.items() for f in several])
def test_options_pass_too(method: str, fields: dict[str, object], check: str) -> None:
    testing.run_check(check, catalogue.load(method), fields)


def code_lines(source: str) -> int:
    """Lines without blanks, comments and docstrings."""
    quiet = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in quiet:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def test_code_lines_are_counted_as_meant() -> None:
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


# The checks have teeth: each method below is wrong in one way, and the named check finds it.


@dataclass(frozen=True)
class Sound(Method):
    """Sends the mean of the head's bias; right in every way."""

    strength: float = 1.0

    sends = Sends(up="mean bias of the head", down="the sum of all")
    needs = Needs(same_head=True)

    def init(self, server: Server) -> None:
        server.state["sum"] = torch.zeros(4)

    def round(self, server: Server, cohort: Cohort) -> None:
        got = cohort.call(self.train, shared={"sum": server.state["sum"]})
        server.state["sum"] = torch.stack([reply.tensor("bias") for reply in got.values()]).sum(0)

    @step(down={"sum": TensorField((4,))}, up={"bias": TensorField((4,))})
    def train(self, client: Client, msg: Payload) -> Reply:
        client.fit()
        return {"bias": self.bias(client)}

    def bias(self, client: Client) -> torch.Tensor:
        return client.model.head.get_parameter("bias").detach().clone()


register("toy-sound")(Sound)

CALLS: list[str] = []  # hidden state, as a careless author might have it


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


class HasNoSeed(Sound):
    def bias(self, client: Client) -> torch.Tensor:
        return super().bias(client) + float(np.random.default_rng().random())


class Freezes(Sound):
    """Switches gradients off the first time, which a rebuilt client does not remember."""

    def bias(self, client: Client) -> torch.Tensor:
        client.model.backbone.requires_grad_(False)
        return super().bias(client)


class LearnsWhileTested(Sound):
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


class KeepsQuiet(Sound):
    sends = Sends(down="the sum of all")


class Boasts(Sound):
    sends = Sends(up="mean bias of the head", down="the sum of all")

    def round(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.alone)

    @step()
    def alone(self, client: Client, msg: Payload) -> None:
        client.fit()


class NeedsMore(Sound):
    """Says that any head will do, and then stacks them."""

    needs = Needs()

    @step(down={"sum": TensorField((4,))}, up={"bias": TensorField((4,))})
    def train(self, client: Client, msg: Payload) -> Reply:
        if client.profile.head[0][0] != "weight":
            raise RuntimeError("this head has layers")
        return super().train(client, msg)

    def round(self, server: Server, cohort: Cohort) -> None:
        got = cohort.call(self.train, shared={"sum": server.state["sum"]})
        if len(got) < len(cohort):
            raise InputError("a client is missing")
        super().round(server, cohort)


class WantsAll(Sound):
    def round(self, server: Server, cohort: Cohort) -> None:
        got = cohort.call(self.train, shared={"sum": server.state["sum"]})
        server.state["sum"] = torch.stack([got[name].tensor("bias") for name in cohort.ids]).sum(0)


class WantsTwoClasses(Sound):
    def bias(self, client: Client) -> torch.Tensor:
        if len(set(client.train.labels.tolist())) < 2:
            raise ValueError("one class only")
        return super().bias(client)


class WantsTwoSamples(Sound):
    def bias(self, client: Client) -> torch.Tensor:
        if len(client.train) < 2:
            raise ValueError("one sample only")
        return super().bias(client)


class TrainsByItself(Sound):
    """A loop of its own, which gives BatchNorm a batch of one."""

    def bias(self, client: Client) -> torch.Tensor:
        client.model.train()
        for x, _ in client.train.batches(8):
            client.model(x)
        return super().bias(client)


class WantsCompany(Sound):
    def round(self, server: Server, cohort: Cohort) -> None:
        if len(cohort) < 2:
            raise InputError("two clients are needed")
        super().round(server, cohort)


class TouchesEveryone(Sound):
    """Trains clients whose turn it is not."""

    def round(self, server: Server, cohort: Cohort) -> None:
        super().round(server, cohort)
        Cohort(cohort._door, tuple("01234"[: len(server.roster)]), lambda names: None).call(
            self.train, shared={"sum": server.state["sum"]}
        )


class Tuples(Sound):
    widths: tuple[int, ...] = (1, 2)


for wrong in Sound.__subclasses__():
    register(f"toy-{wrong.__name__.lower()}")(dataclass(frozen=True)(wrong))


TEETH: list[tuple[type[Method], str]] = [
    (ChangesMessage, "inputs_not_modified"),
    (ChangesMessage, "order_of_clients_is_irrelevant"),
    (CountsCalls, "order_of_clients_is_irrelevant"),
    (CountsCalls, "serial_equals_pool"),
    (CountsCalls, "stopped_and_resumed"),
    (UsesGlobalNumpy, "global_random_state_untouched"),
    (UsesGlobalPython, "global_random_state_untouched"),
    (HasNoSeed, "global_random_state_untouched"),
    (Freezes, "little_memory_changes_nothing"),
    (LearnsWhileTested, "evaluation_leaves_no_trace"),
    (SendsList, "only_tensors_and_scalars"),
    (SendsGraph, "only_tensors_and_scalars"),
    (KeepsQuiet, "sends_says_what_flows"),
    (Boasts, "sends_says_what_flows"),
    (NeedsMore, "needs_hold_before_round_one"),
    (WantsAll, "failing_clients_survived"),
    (WantsAll, "client_that_always_fails_stays_as_it_was"),
    (WantsTwoClasses, "client_with_one_class"),
    (WantsTwoSamples, "client_with_one_sample"),
    (TrainsByItself, "odd_last_batch"),
    (WantsCompany, "one_client"),
    (TouchesEveryone, "partial_participation"),
    (Tuples, "frozen_dataclass_of_json_fields"),
]


@pytest.mark.parametrize(("method", "check"), TEETH, ids=lambda value: getattr(value, "__name__", value))
def test_a_wrong_method_is_found(method: type[Method], check: str) -> None:
    with pytest.raises(AssertionError):
        testing.run_check(check, method)


@pytest.mark.parametrize("check", sorted({check for _, check in TEETH}))
def test_what_finds_the_wrong_passes_the_sound(check: str) -> None:
    testing.run_check(check, Sound)


class Excused(Sound):
    excused = {"one_client": "it is about what clients have in common"}  # noqa: RUF012


register("toy-excused")(dataclass(frozen=True)(Excused))


def test_an_excuse_is_told_and_covers_one_check_only() -> None:
    with pytest.raises(testing.Excused, match="in common"):
        testing.run_check("one_client", Excused)
    testing.run_check("client_with_one_class", Excused)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: testing.run_check("one_clint", Sound), "did you mean 'one_client'"),
        (lambda: testing.run_check("one_client", Method), "no name"),
        (lambda: testing.run_check("one_client", int), "not a method"),  # type: ignore[arg-type]
    ],
)
def test_wrong_use_is_one_sentence(call: Callable[[], None], said: str) -> None:
    with pytest.raises(InputError, match=said):
        call()
