"""Which methods there are, read from their source without running it: lists answer at once, without torch.

A method declares itself by literals (its name, fields, needs and what it sends), so its source, with that of the
methods it derives from, says all that a list shows. `load` imports one method; `make` checks its fields and makes it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import io
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed.errors import InputError, nearest

if TYPE_CHECKING:
    from polyfed.core.filter import ServerFilter
    from polyfed.core.method import Method

ENTRY_POINTS = "polyfed.methods"
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Option:
    """A hyperparameter of a method."""

    name: str
    type: str
    default: Any
    help: str


@dataclass(frozen=True)
class Listed:
    """A method as a list shows it."""

    name: str
    title: str
    paper: str
    requires: list[str]
    sends_up: str
    sends_down: str
    options: list[Option]
    aliases: tuple[str, ...] = ()
    module: str = field(default="", repr=False)


@cache
def catalogue() -> Mapping[str, Listed]:
    """Every method by name, in alphabetical order."""
    found: dict[str, Listed] = {}
    for module, path in _sources():
        try:
            found |= {listed.name: listed for listed in _read(module, path)}
        except (OSError, SyntaxError, ValueError):
            if module.startswith("polyfed."):
                raise
            # a plug-in that cannot be read is not listed; whoever asks for it by name is told so
    return dict(sorted(found.items()))


@cache
def filters() -> Mapping[str, Listed]:
    """Every server filter by name."""
    paths = sorted(path for path in (_HERE / "filters").glob("*.py") if path.stem != "__init__")
    return {listed.name: listed for path in paths for listed in _read(f"polyfed.filters.{path.stem}", path)}


def load(name: str) -> type[Method]:
    """The class of a method. Its file is imported now, unless it is already there."""
    from polyfed.core.method import registered

    if name not in registered():
        for listed in catalogue().values():
            if name in (listed.name, *listed.aliases):
                importlib.import_module(listed.module)
    if name not in registered():
        known = {*catalogue(), *registered()}
        raise InputError(f"there is no method called '{name}'; {nearest(name, known)}")
    return registered()[name]


def make(settings: Mapping[str, Any]) -> Method:
    """A method from its name and fields; unknown fields and wrong types are refused in one sentence."""
    method = load(str(settings["name"]))
    return method(**_checked("method", method, settings))


def make_filter(settings: str | Mapping[str, Any]) -> ServerFilter | None:
    """A server filter from its name and fields; None where the config asks for none."""
    if isinstance(settings, str):
        settings = {"name": settings}
    name = str(settings["name"])
    if name == "none":
        return None
    from polyfed.core.filter import registered

    listed = filters().get(name)
    if listed is not None:
        importlib.import_module(listed.module)
    if name not in registered():
        raise InputError(
            f"there is no server filter called '{name}'; {nearest(name, {'none', *filters(), *registered()})}"
        )
    chosen = registered()[name]
    return chosen(**_checked("server_filter", chosen, settings))


def _checked(key: str, kind: type[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a config gives a method or a filter, if they are its own and of the right types."""
    import dataclasses
    from typing import get_type_hints

    from pydantic import ConfigDict, ValidationError, create_model

    given = {name: value for name, value in settings.items() if name != "name"}
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for name in given:
        if name not in fields:
            raise InputError(f"{key.replace('_', ' ')} {kind.name} has no field '{name}'; {nearest(name, fields)}")
    hints = get_type_hints(kind)
    shape: Any = {name: (hints[name], ...) for name in given}
    try:
        create_model(
            "fields", __config__=ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False), **shape
        )(**given)
    except ValidationError as error:
        problem = error.errors()[0]
        said = problem["msg"][0].lower() + problem["msg"][1:]
        raise InputError(
            f"{key}.{problem['loc'][0]} is {problem['input']!r}: {said.replace('input should be', 'expected')}"
        ) from None
    return given


# reading sources


def _sources() -> Iterator[tuple[str, Path]]:
    """Modules that hold methods: ours, and those that installed packages announce."""
    for path in sorted((_HERE / "methods").glob("*.py")):
        if path.stem != "__init__":
            yield f"polyfed.methods.{path.stem}", path
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        module = entry.value.partition(":")[0]
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            continue  # announced by a package whose module is gone
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            yield module, Path(spec.origin)


def _read(module: str, path: Path) -> Iterator[Listed]:
    source = _Source.of(path)
    intro = [part.strip() for part in (ast.get_docstring(source.tree) or "").split("\n\n")]
    for node in source.classes:
        names = _registered_names(node)
        if not names:
            continue
        said = source.declared(node)
        yield Listed(
            name=names[0],
            title=(ast.get_docstring(node) or "").split("\n")[0],
            paper=" ".join(intro[1].split()) if len(intro) > 1 else "",
            requires=[need for need, wanted in (_needs_defaults() | said.needs).items() if wanted],
            sends_up=said.sends.get("up", "nothing"),
            sends_down=said.sends.get("down", "nothing"),
            options=list(said.options.values()),
            aliases=names[1:],
            module=module,
        )


@dataclass
class _Declared:
    """What a class says by literals, its own words before those of its bases."""

    options: dict[str, Option] = field(default_factory=dict)
    needs: dict[str, Any] = field(default_factory=dict)
    sends: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Source:
    """A file that declares methods, as text."""

    tree: ast.Module
    comments: Mapping[int, str]

    @staticmethod
    @cache
    def of(path: Path) -> _Source:
        text = path.read_text()
        return _Source(ast.parse(text), _comments(text))

    @property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.tree.body if isinstance(node, ast.ClassDef)]

    def declared(self, node: ast.ClassDef) -> _Declared:
        """Fields, needs and sends of a class, with those it has from bases that are found among the methods."""
        said = _Declared()
        for base in reversed(node.bases):
            where, inherited = self._base(base, node)
            if where is None or inherited is None:
                continue
            before = where.declared(inherited)
            if _is_dataclass(inherited):
                said.options |= before.options
            said.needs, said.sends = before.needs or said.needs, before.sends or said.sends
        said.options |= self._own_options(node)  # one that was there keeps its place, as in a dataclass
        for item in node.body:
            if isinstance(item, ast.Assign):
                for target in item.targets:
                    if isinstance(target, ast.Name) and target.id in ("needs", "sends"):
                        setattr(said, target.id, _keywords(item.value))
        return said

    def _own_options(self, node: ast.ClassDef) -> dict[str, Option]:
        return {
            item.target.id: Option(
                item.target.id,
                ast.unparse(item.annotation),
                _literal(item.value),
                self.comments.get(item.lineno, ""),
            )
            for item in node.body
            if isinstance(item, ast.AnnAssign)
            and isinstance(item.target, ast.Name)
            and item.value is not None
            and not ast.unparse(item.annotation).startswith("ClassVar")
        }

    def _base(self, base: ast.expr, heir: ast.ClassDef) -> tuple[_Source | None, ast.ClassDef | None]:
        """Where a base class is declared: further up in this file, or in a method's file that this one imports."""
        name = ast.unparse(base)
        for node in self.classes:
            if node.name == name and node.lineno < heir.lineno:
                return self, node
        first, dot, rest = name.partition(".")
        module, _, kind = (self._imported().get(first, first) + dot + rest).rpartition(".")
        path = _HERE.parent.joinpath(*module.split(".")).with_suffix(".py")
        if not module.startswith("polyfed.methods.") or not path.exists():
            return None, None
        source = _Source.of(path)
        return source, next((node for node in source.classes if node.name == kind), None)

    def _imported(self) -> dict[str, str]:
        """Names that the file imports, and what they stand for."""
        return {
            alias.asname or alias.name: f"{item.module}.{alias.name}"
            for item in self.tree.body
            if isinstance(item, ast.ImportFrom) and not item.level
            for alias in item.names
        }


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any(ast.unparse(mark).partition("(")[0].endswith("dataclass") for mark in node.decorator_list)


def _registered_names(node: ast.ClassDef) -> tuple[str, ...]:
    for mark in node.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func).split(".")[-1] == "register":
            return tuple(str(ast.literal_eval(argument)) for argument in mark.args)
    return ()


def _literal(node: ast.expr) -> Any:
    """A default's value, or its text where it is computed."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _keywords(node: ast.expr | None) -> dict[str, Any]:
    if not isinstance(node, ast.Call):
        return {}
    return {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg is not None}


@cache
def _needs_defaults() -> dict[str, bool]:
    for node in ast.parse((_HERE / "core" / "needs.py").read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == "Needs":
            return {
                item.target.id: bool(ast.literal_eval(item.value))
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None
            }
    return {}


def _comments(source: str) -> dict[int, str]:
    """The comment at the end of each line: a field's help."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
