"""The house keeps its rooms apart: imports point downwards, nothing runs code from data, nothing draws globally."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import re
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_type_hints

import pytest
from scripts import rooms

import polyfed
from polyfed import catalogue
from polyfed.core.method import Method, registered
from polyfed.core.options import option_bounds

ROOT = Path(polyfed.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py"))
NAMES = {path: str(path.relative_to(ROOT)) for path in FILES}
MODULE_NAME = re.compile(r"polyfed(\.[a-z_0-9]+)+(:\w+)?")


def room(path: Path) -> str:
    """Return the first folder below the package, or the name of a module directly below it."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


KNOWN_ROOMS = {room(path) for path in FILES}


@cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree. Several tests read every file, so each is parsed once."""
    return tuple(ast.walk(ast.parse(source)))


def imported(source: str, path: Path) -> Iterator[str]:
    """Yield the full names of everything a file imports: at its top, inside functions, and by names in strings."""
    package = ("polyfed", *path.relative_to(ROOT).parts[:-1])
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE_NAME.fullmatch(node.value):
            yield node.value.partition(":")[0]


def rooms_used(source: str, path: Path) -> set[str]:
    """Return the rooms that a file imports; `import polyfed` and names of the package itself count as `__init__`."""
    names = [name.split(".") for name in imported(source, path)]
    inside = [parts[1] if len(parts) > 1 else "" for parts in names if parts[0] == "polyfed"]
    return {name if name in KNOWN_ROOMS else "__init__" for name in inside} - {room(path)}


def test_every_room_is_listed() -> None:
    assert set(rooms.ROOMS) == KNOWN_ROOMS


def test_imports_are_those_of_the_list() -> None:
    extra: dict[str, list[str]] = {}
    for path, file in NAMES.items():
        used = {name for name in rooms_used(path.read_text(), path) if (file, name) not in rooms.EXCEPTIONS}
        extra[file] = sorted(used - rooms.ROOMS[room(path)].imports - rooms.EVERYWHERE)
    assert {file: names for file, names in extra.items() if names} == {}, "see scripts/rooms.py"


def test_every_listed_import_exists() -> None:
    used: dict[str, set[str]] = {name: set() for name in rooms.ROOMS}
    for path in FILES:
        used[room(path)] |= rooms_used(path.read_text(), path)
    unused = {name: sorted(entry.imports - used[name]) for name, entry in rooms.ROOMS.items()}
    assert {name: imports for name, imports in unused.items() if imports} == {}


def test_the_rooms_form_no_circle() -> None:
    order = list(rooms.ROOMS)
    for name, entry in rooms.ROOMS.items():
        above = [other for other in entry.imports - {"__init__"} if order.index(other) < order.index(name)]
        assert not above, f"{name} imports {above}, which stand above it"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from polyfed.cli.run import run", {"cli"}),
        ("def f():\n    from polyfed.deploy import keys", {"deploy"}),
        ("import polyfed", {"__init__"}),
        ("import polyfed.engines.pool", {"engines"}),
        ("MAKER = 'polyfed.federation.simulation:host'", {"federation"}),
        ("from polyfed import __version__", {"__init__"}),
        ("from .. import report", {"report"}),
    ],
)
def test_hidden_imports_are_seen(source: str, expected: set[str]) -> None:
    assert rooms_used(source, ROOT / "core" / "any.py") == expected


def test_every_exception_is_still_needed() -> None:
    for file, name in rooms.EXCEPTIONS:
        assert name in rooms_used((ROOT / file).read_text(), ROOT / file)


@pytest.mark.parametrize("page", rooms.PAGES)
def test_the_pages_show_this_list(page: str) -> None:
    assert rooms.text() in Path(page).read_text(encoding="utf-8"), "run python scripts/rooms.py"


def test_every_package_says_what_lives_there() -> None:
    packages = {path: ast.parse(path.read_text()) for path in FILES if path.name == "__init__.py"}
    assert [NAMES[path] for path, tree in packages.items() if len(ast.get_docstring(tree) or "") < 40] == []


MOST_LINES = 300  # of a file; a longer one says why in the second line of its docstring or in a comment at its top

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
    for name in imported(source, ROOT / "any.py"):
        if name.split(".")[0] in FORBIDDEN_MODULES:
            yield f"imports {name}"
    for node in nodes(source):
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


def test_no_code_from_data_and_no_global_draws() -> None:
    assert [f"{file} {offence}" for path, file in NAMES.items() for offence in offences(path.read_text())] == []


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


def test_a_long_file_gives_its_reason() -> None:
    lines = {file: path.read_text().splitlines() for path, file in NAMES.items()}
    long = {file: text for file, text in lines.items() if len(text) > MOST_LINES}
    assert [file for file, text in long.items() if not any("Longer than other files" in t for t in text[:12])] == []


@pytest.mark.parametrize("name", ["dffke", "fedvtc", "fedfree"])
def test_the_main_file_of_a_large_method_is_short(name: str) -> None:
    assert len((ROOT / "methods" / name / "method.py").read_text().splitlines()) < 200


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
    assert listed.verdict == kind.verdict and "verdict" in vars(kind)  # its own, not that of a base class
    assert 40 <= len(listed.verdict) <= 130 and listed.verdict.endswith(".")
    assert "measured" in (kind.__doc__ or "") and "%" not in (kind.__doc__ or "")  # when, but no numbers, which age
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
