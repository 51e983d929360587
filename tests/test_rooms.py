"""The house keeps its rooms apart: imports point downwards, nothing runs code from data, nothing draws globally."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest

import polyfed
from polyfed import catalogue
from polyfed.core.method import Method, registered
from polyfed.core.options import option_bounds

ROOT = Path(polyfed.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py"))
LEAVES = {"data", "models", "training"}
# What each room may import besides itself and `errors`; a room that is not here is at the top.
BELOW: dict[str, set[str]] = {
    "errors": set(),
    "machine": set(),
    **{leaf: set() for leaf in LEAVES},
    "core": LEAVES,
    "methods": {"core", *LEAVES},
    "filters": {"core", *LEAVES},
    "guards": {"core", *LEAVES},
    "analysis": LEAVES,
    "engines": {"core", "machine"},
    "runs": {"core"},
    "comparison": {"runs"},
    "report": {"runs", "comparison", "analysis", "__init__"},
    "ui": {"runs", "comparison"},
}
# A worker's process must have imported all that a federation needs before it is forked.
EXCEPTIONS = {("engines/worker.py", "federation")}


def room(path: Path) -> str:
    """The first folder below the package, or the name of a file that stands alone."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(tree: ast.AST, path: Path) -> Iterator[str]:
    """The full names of everything that a file of the package imports, wherever it does so."""
    package = ("polyfed", *path.relative_to(ROOT).parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def rooms_used(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = [name.split(".") for name in imported(tree, path)]
    return {parts[1] for parts in names if parts[0] == "polyfed" and len(parts) > 1}


@pytest.mark.parametrize("path", [p for p in FILES if room(p) in BELOW], ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    here = room(path)
    used = {name for name in rooms_used(path) if (str(path.relative_to(ROOT)), name) not in EXCEPTIONS}
    assert used <= BELOW[here] | {here, "errors"}, f"{here} may not import {sorted(used - BELOW[here] - {here})}"


def test_nobody_imports_the_command_line() -> None:
    above = {"cli", "__main__"}
    assert [str(p) for p in FILES if room(p) not in above and "cli" in rooms_used(p)] == []


def test_nobody_but_commands_imports_deployments() -> None:
    above = {"deploy", "cli", "benchmarks"}
    assert [str(p) for p in FILES if room(p) not in above and "deploy" in rooms_used(p)] == []


def test_nobody_but_people_imports_the_battery() -> None:
    assert [str(p) for p in FILES if room(p) not in {"testing", "cli"} and "testing" in rooms_used(p)] == []


def test_every_exception_is_still_needed() -> None:
    for file, name in EXCEPTIONS:
        assert name in rooms_used(ROOT / file)


# Longer than others: a round of five phases, which belongs into one file like every other method.
LONG = {"methods/dffke/method.py": 510}

# no code from data, no global draws

FORBIDDEN_MODULES = {"pickle", "dill", "cloudpickle", "shelve", "marshal", "torchvision", "timm"}
FORBIDDEN_CALLS = {"torch.load", "torch.save", "yaml.load", "yaml.full_load", "yaml.unsafe_load", "eval", "exec"}
SEEDS = {
    "torch.manual_seed",
    "torch.seed",
    "torch.cuda.manual_seed",
    "numpy.random.seed",
    "np.random.seed",
    "random.seed",
}
# of numpy.random and random: what makes a generator of one's own, and what looks without drawing
OWN_GENERATORS = {"Generator", "PCG64", "RandomState", "SeedSequence", "Random", "get_state", "set_state"}
OWN_GENERATORS |= {"getstate", "setstate", "default_rng"}
DRAWS = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "rand_like", "randn_like"}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def offences(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    for name in imported(tree, ROOT / "any.py"):
        if name.split(".")[0] in FORBIDDEN_MODULES:
            yield f"imports {name}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        if name in FORBIDDEN_CALLS | SEEDS:
            yield f"calls {name} in line {node.lineno}"
        for keyword in node.keywords:
            if keyword.arg == "allow_pickle" and not (
                isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            ):
                yield f"allows pickle in line {node.lineno}"
            if keyword.arg == "weights_only":
                yield f"loads with torch in line {node.lineno}"
        head, _, last = name.rpartition(".")
        if head in {"np.random", "numpy.random", "random"} and last not in OWN_GENERATORS:
            yield f"draws from the global generator by {name} in line {node.lineno}"
        if name.endswith("default_rng") and not node.args:
            yield f"makes a generator without a seed in line {node.lineno}"
        if head == "torch" and last in DRAWS and not any(k.arg == "generator" for k in node.keywords):
            yield f"draws from torch's global generator by {name} in line {node.lineno}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_code_from_data_and_no_global_draws(path: Path) -> None:
    assert list(offences(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import dumps",
        "torch.load('x')",
        "eval('1')",
        "yaml.load('x')",
        "np.load('x', allow_pickle=True)",
        "np.load('x', allow_pickle=flag)",
        "np.random.rand(3)",
        "np.random.default_rng()",
        "random.shuffle([])",
        "torch.manual_seed(0)",
        "torch.randperm(3)",
    ],
)
def test_offences_are_found(source: str) -> None:
    assert len(list(offences(source))) >= 1


def test_what_is_allowed_is_no_offence() -> None:
    right = "yaml.safe_load('x')\ntorch.randperm(3, generator=g)\nnp.random.Generator(np.random.PCG64(1)).random()"
    assert list(offences(right)) == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_is_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONG.get(str(path.relative_to(ROOT)), 400)


# what lists show without importing anything is what the classes are


@pytest.mark.parametrize("name", list(catalogue.methods()))
def test_a_listed_method_is_the_real_one(name: str) -> None:
    listed, kind = catalogue.methods()[name], catalogue.load(name)
    assert issubclass(kind, Method)
    assert kind.name == name
    assert kind.__module__ == listed.module
    assert all(registered()[alias] is kind for alias in (name, *listed.aliases))
    fields = dataclasses.fields(kind)
    assert [(option.name, option.default) for option in listed.options] == [
        (field.name, field.default) for field in fields
    ]
    types = get_type_hints(kind)  # without the bounds of Annotated types
    names = {**vars(typing), **vars(builtins)}
    assert {o.name: eval(o.type, names) for o in listed.options} == {f.name: types[f.name] for f in fields}
    bounds = {name: dict(stated) for name, stated in option_bounds(kind).items()}
    assert {option.name: option.bounds for option in listed.options if option.bounds} == bounds
    assert all(option.help for option in listed.options)
    assert listed.requires == [f.name for f in dataclasses.fields(kind.needs) if getattr(kind.needs, f.name)]
    assert (listed.sends_up, listed.sends_down) == (kind.sends.up, kind.sends.down)
    assert listed.title == (kind.__doc__ or "").splitlines()[0]
    # fedktl refuses to be made without a generator: that refusal is the same either way
    given = (
        {"source": "g.py", "checkpoint": "g.safetensors", "sha256": "00", "pretraining": "x"}
        if name == "fedktl"
        else {}
    )
    assert catalogue.make({"name": name, **given}) == kind(**given)


def test_the_five_are_there() -> None:
    assert {"local", "fedavg", "lg-fedavg", "feddistill", "fedproto"} <= catalogue.methods().keys()
    assert catalogue.load("fd") is catalogue.load("feddistill")
