"""Digests of the user's files in a run: imported code, the local modules that it imports, notebook code, and weights.

Python files are parsed, not imported, so this needs no torch. Comments, docstrings and formatting do not count, nor
does what a script does with the results of `polyfed.run`.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import importlib.util
import json
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from polyfed.config.config import Config
from polyfed.config.relevant_code import relevant_code
from polyfed.config.start_files import start_files
from polyfed.errors import InputError

SESSION = "user_code.py"  # key of the digest of code that is in no file, as the run folder calls it
MODULE_PREFIX = "module_"  # of the modules with the user's models and methods that this code imports


def code_digests(config: Config) -> dict[str, str]:
    """Return a digest for each file of the user that a config needs, by path, and one for the code of a session."""
    from polyfed import catalogue

    name = config.method["name"]
    method = catalogue.find_method(str(name))
    plug_ins = [method.module] if method is not None and not method.module.startswith("polyfed.") else []
    digests = file_digests([*config.imports, *plug_ins])
    if config.user_code:
        tree = _parse(config.user_code, SESSION)
        imports = [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        modules = [alias.name for alias in imports if (alias.asname or "").startswith(MODULE_PREFIX)]
        digests |= file_digests([*modules, *(str(path) for path in _local_imports(tree, None, ""))])
        digests[SESSION] = _digest(ast.unparse(relevant_code(tree)))
    return digests | {str(file): _file_digest(file, _last_change(file)) for file in _data_files(config)}


def _data_files(config: Config) -> set[Path]:
    """Return the files of a config that are not code, but affect results."""
    tokenizer = config.data.tokenizer
    return {*start_files(config).values(), *([Path(tokenizer)] if tokenizer is not None else [])}


def polyfed_version() -> str:
    """Return the version of polyfed."""
    from polyfed import __version__

    return __version__


def file_digests(imports: Iterable[str]) -> dict[str, str]:
    """Return the digests of modules and files (`.py`), and of all local modules that they import, by path."""
    digests: dict[str, str] = {}
    waiting: list[tuple[Path, str]] = []
    for name in imports:
        if name.endswith(".py"):
            waiting.append((Path(name).expanduser().resolve(), ""))
        else:
            package = name.partition(".")[0]
            waiting += [(path, package) for path in _module_files(name.split("."), None, package)]
    while waiting:
        path, package = waiting.pop()
        if str(path) not in digests:
            digests[str(path)], tree = _read(path, _last_change(path))
            waiting += [(file, package) for file in _local_imports(tree, path, package)]
    return dict(sorted(digests.items()))


def check_unchanged(digests: Mapping[str, str]) -> None:
    """Raise `InputError` if a file has another digest. Workers that start late in a run must have the run's code."""
    for name, digest in digests.items():
        path = Path(name)
        if name != SESSION and _current_digest(path) != digest:
            raise InputError(f"{name} has changed since this run was started; start the run again")


def config_hash(config: Config, versions: Mapping[str, object]) -> str:
    """Return a digest of all that a result depends on: the settings, the user's code and the version of polyfed."""
    parts = [config.hash(), versions.get("polyfed"), versions.get("code", {})]
    return _digest(json.dumps(parts, sort_keys=True))


def describe_changes(
    recorded: Mapping[str, object], current: Mapping[str, object], session: tuple[str, str] = ("", "")
) -> str:
    """Say how the version of polyfed and the user's code differ from the recorded ones. Return '' if they do not.

    `session` has the recorded and the current code that is in no file. Runs of releases that recorded no digests are
    compared by the version of polyfed alone.
    """
    changes = []
    if recorded.get("polyfed") not in (None, current["polyfed"]):
        changes.append(f"polyfed is {current['polyfed']}, was {recorded['polyfed']}")
    before, now = recorded.get("code"), current["code"]
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in sorted({*before, *now}):
            if before.get(name) == now.get(name):
                continue
            if name == SESSION:
                changed = ", ".join(_changed_definitions(*session))
                changes.append(f"the code of the session has changed{changed and f' ({changed})'}")
            else:
                what = "has changed" if name in before and name in now else "is new" if name in now else "is not used"
                changes.append(f"{name} {what}")
    return " and ".join(changes)


def _changed_definitions(before: str, now: str) -> list[str]:
    """Return the names of the functions, classes and variables that differ between two modules."""

    def definitions(text: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for node in _parse(text, SESSION).body:
            names = [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef) else []
            if isinstance(node, ast.Assign):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            found |= {name: ast.unparse(node) for name in names if not name.startswith((MODULE_PREFIX, "DIGESTS"))}
        return found

    old, new = definitions(before), definitions(now)
    return sorted(name for name in {*old, *new} if old.get(name) != new.get(name))


def _last_change(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


def _current_digest(path: Path) -> str:
    change = _last_change(path)
    return _read(path, change)[0] if path.suffix == ".py" else _file_digest(path, change)


@lru_cache(maxsize=1024)
def _file_digest(path: Path, last_change: tuple[int, int]) -> str:
    """Return the digest of a file's content."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


@lru_cache(maxsize=256)
def _read(path: Path, last_change: tuple[int, int]) -> tuple[str, ast.Module]:
    """Return a file's digest and its syntax tree. `last_change` keeps old ones out of the cache."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise InputError(f"imports: there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"imports: {path} cannot be read: {error}") from None
    tree = _parse(text, str(path))
    return _digest(ast.unparse(relevant_code(tree))), tree


def _parse(text: str, name: str) -> ast.Module:
    try:
        return ast.parse(text, name)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        reason = getattr(error, "msg", None) or str(error)
        raise InputError(f"{name}{f', line {line}' if line else ''} is not valid Python: {reason}") from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _local_imports(tree: ast.AST, path: Path | None, package: str) -> Iterator[Path]:
    """Yield the files of the local modules that a file imports anywhere, also by `import_user_file`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module_files(alias.name.split("."), path, package)
        elif isinstance(node, ast.ImportFrom):
            base = (node.module or "").split(".") if node.module else []
            for alias in node.names:
                if node.level and path is not None:
                    yield from _files_below([path.parents[node.level - 1]], [*base, alias.name])
                elif not node.level:
                    yield from _module_files([*base, alias.name], path, package)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_user_file":
            yield from (Path(n.value) for n in ast.walk(node) if isinstance(n, ast.Constant) and type(n.value) is str)


def _module_files(parts: list[str], path: Path | None, package: str) -> Iterator[Path]:
    """Yield the files that `import a.b.c` runs, if they are local: outside of installed packages, or in `package`."""
    top = parts[0]
    if top == "polyfed" or top in sys.stdlib_module_names:
        return
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None and path is not None:  # modules next to a file are found as well
        spec = importlib.machinery.PathFinder.find_spec(top, [str(path.parent)])
    if spec is None:
        return
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    places = [*folders, *([Path(spec.origin)] if spec.origin else [])]
    if top != package and any(_is_installed(place) for place in places):
        return
    if spec.origin is not None and spec.origin.endswith(".py"):
        yield Path(spec.origin).resolve()
    yield from _files_below(folders, parts[1:])


def _files_below(folders: list[Path], parts: list[str]) -> Iterator[Path]:
    """Yield the files of a module and of its parent packages below folders."""
    for part in parts:
        found = [file for folder in folders for file in (folder / f"{part}.py", folder / part / "__init__.py")]
        yield from (file.resolve() for file in found if file.is_file())
        folders = [folder / part for folder in folders]


def _is_installed(place: Path) -> bool:
    """Return whether a file belongs to an installed package, also of another environment on the search path."""
    return not {"site-packages", "dist-packages"}.isdisjoint(place.parts) or any(
        place.is_relative_to(folder) for folder in _installed()
    )


@lru_cache(maxsize=1)
def _installed() -> tuple[Path, ...]:
    """Return the folders of installed packages."""
    paths = [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")]
    return tuple(Path(path) for path in {*paths, *site.getsitepackages(), site.getusersitepackages()})
