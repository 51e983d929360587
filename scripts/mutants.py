"""Mutation testing: change one operator, number or check of the code at a time, and see whether a test fails.

The script collects the tests, then forks a process for every mutant. The child replaces the code of one function and
runs the tests in files that import the changed module, until one fails. If there are none, it runs the tests in files
that import a module which imports the changed one. Nothing is imported twice, so a mutant takes about a second. Only bodies of functions are changed: no constants and defaults of modules and classes, no messages, no
annotations. Tests of other files may find some of the mutants that survive here.

    python scripts/mutants.py                           # 500 of all mutants of core and guards
    python scripts/mutants.py --sample 40 --seed 1      # other ones, fewer
    python scripts/mutants.py src/polyfed/core/aggregation.py --sample 0     # all of one file
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import gc
import json
import os
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("src/polyfed/core", "src/polyfed/guards")
TESTS = (
    "tests/core",
    "tests/guards",
    "tests/deploy/test_hostile_replies.py",  # replies of evaluations and probes
)
MARKS = "not (sites or ray or browser or kills or processes or slow)"  # tests in one process
CPU_SECONDS = 40  # of a mutant's process; a mutant that loops is ended by it
WALL_SECONDS = 1800.0  # for a mutant that waits forever; a busy machine is no timeout

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True)
class Mutant:
    """One change of the code."""

    file: str
    line: int
    node: int  # number of the changed node in the order of `ast.walk`
    kind: str
    before: str
    after: str


# mutants


def replacement(node: ast.AST) -> tuple[str, ast.AST] | None:
    """Return the kind of change of a node and the node after it. None: the node is not changed."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        ops = [COMPARISONS[type(node.ops[0])](), *node.ops[1:]]
        return "comparison", ast.Compare(node.left, ops, node.comparators)
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        return "arithmetic", ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    if isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
        return "arithmetic", ast.AugAssign(node.target, ARITHMETIC[type(node.op)](), node.value)
    if isinstance(node, ast.BoolOp):
        return "and, or, not", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        return "and, or, not" if isinstance(node.op, ast.Not) else "arithmetic", node.operand
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return "constant", ast.Constant(not node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return "constant", ast.Constant(node.value + 1)
    if isinstance(node, ast.If | ast.IfExp) and isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
        fields = dict(ast.iter_fields(node))
        return "condition", type(node)(**{**fields, "test": ast.UnaryOp(ast.Not(), node.test)})
    if isinstance(node, ast.Raise):
        return "removed check", ast.Pass()
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return "removed call", ast.Pass()
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OPPOSITES:
        return "opposite call", ast.Call(ast.Name(OPPOSITES[node.func.id], ast.Load()), node.args, node.keywords)
    return None


def changeable(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, without messages, annotations, assertions and decorators of functions."""
    for name, value in ast.iter_fields(function):
        if name in ("annotation", "returns", "decorator_list", "args", "exc", "type_params"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not isinstance(node, ast.JoinedStr | ast.Assert):
                yield node
                yield from changeable(node)


def mutants_of(file: str) -> list[Mutant]:
    """Return all mutants of a file."""
    tree = ast.parse((ROOT / file).read_text())
    numbers = {id(node): number for number, node in enumerate(ast.walk(tree))}
    found: dict[int, Mutant] = {}
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.Lambda):
            continue
        for node in changeable(function):
            changed = replacement(node)
            if changed is not None:
                kind, after = changed
                before, text = ast.unparse(node), ast.unparse(ast.fix_missing_locations(after))
                number = numbers[id(node)]
                found[number] = Mutant(file, getattr(node, "lineno", 0), number, kind, _first(before), _first(text))
    return sorted(found.values(), key=lambda mutant: (mutant.line, mutant.node))


def _first(text: str) -> str:
    return text.partition("\n")[0][:100]


class _Replace(ast.NodeTransformer):
    def __init__(self, target: ast.AST) -> None:
        self._target = target

    def visit(self, node: ast.AST) -> Any:
        if node is not self._target:
            return self.generic_visit(node)
        changed = replacement(node)
        assert changed is not None
        return ast.copy_location(changed[1], node)


def apply(mutant: Mutant) -> int:
    """Replace the code of the changed function in this process. Return how many functions were changed."""
    path = str(ROOT / mutant.file)
    tree = ast.parse(Path(path).read_text())
    target = list(ast.walk(tree))[mutant.node]
    changed = compile(ast.fix_missing_locations(_Replace(target).visit(tree)), path, "exec", dont_inherit=True)
    codes = {(code.co_qualname, code.co_firstlineno): code for code in _codes(changed)}
    count = 0
    gc.unfreeze()  # tests/conftest.py freezes what was imported; frozen objects are not listed
    for function in [item for item in gc.get_objects() if type(item) is types.FunctionType]:
        code = function.__code__
        new = codes.get((code.co_qualname, code.co_firstlineno)) if code.co_filename == path else None
        if new is not None and new != code and new.co_freevars == code.co_freevars:
            function.__code__ = new
            count += 1
    return count


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


# tests


class Tests:
    """A pytest plugin that runs the mutants instead of the tests."""

    __test__ = False

    def __init__(self, main: Callable[[Tests], None]) -> None:
        self._main = main
        self.items: dict[str, pytest.Item] = {}
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        import hypothesis

        hypothesis.settings.register_profile("mutants", deadline=None, derandomize=True, database=None)
        hypothesis.settings.load_profile("mutants")
        self.items = {item.nodeid: item for item in session.items}
        self._main(self)
        return True

    def run(self, names: Sequence[str]) -> bool:
        """Run tests until one fails. Return whether all passed."""
        for position, name in enumerate(names):
            following = self.items[names[position + 1]] if position + 1 < len(names) else None
            item = self.items[name]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return False
        return True


def in_child(work: Callable[[], int], cpu: int = CPU_SECONDS, wall: float = WALL_SECONDS) -> str:
    """Run a function in a forked process. Return 'exit N', or 'timeout'."""
    scratch = tempfile.mkdtemp(prefix="mutant")
    child = os.fork()
    if child == 0:
        status = 3
        try:
            os.setpgid(0, 0)
            tempfile.tempdir = scratch
            os.environ["TMPDIR"] = scratch
            resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            status = work()
        except BaseException:  # a mutant may do anything
            traceback.print_exc()
            status = 1
        finally:
            os._exit(status)
    until = time.monotonic() + wall
    ended, code = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < until:
        time.sleep(0.02)
        ended, code = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # workers that the child started
    shutil.rmtree(scratch, ignore_errors=True)
    if not ended or os.WIFSIGNALED(code):
        return "timeout"
    return f"exit {os.WEXITSTATUS(code)}"


def imported_modules(source: str) -> set[str]:
    """Return the modules of polyfed that a file imports by name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.startswith("polyfed.")}


def tests_by_module(items: dict[str, pytest.Item]) -> dict[str, list[str]]:
    """Return the tests of every module: those in files that import it."""
    tests: dict[str, list[str]] = {}
    imports: dict[Path, set[str]] = {}
    for name, item in items.items():
        if item.path not in imports:
            imports[item.path] = imported_modules(item.path.read_text())
        for module in imports[item.path]:
            tests.setdefault(module, []).append(name)
    return tests


def importers(module: str) -> list[str]:
    """Return the modules of the changed folders that import a module."""
    files = [file for source in SOURCES for file in sorted((ROOT / source).rglob("*.py"))]
    return [module_name(file) for file in files if module in imported_modules(file.read_text())]


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT / "src").with_suffix("").parts)


def test_mutants(tests: Tests, mutants: Sequence[Mutant], out: Path) -> None:
    """Test every mutant and append its result to a file."""
    by_module = tests_by_module(tests.items)
    results: collections.Counter[str] = collections.Counter()
    with out.open("a") as file:
        for mutant in mutants:
            module = module_name(ROOT / mutant.file)
            names = by_module.get(module, [])
            if not names:
                users = [by_module.get(user, []) for user in importers(module)]
                names = list(dict.fromkeys(name for found in users for name in found))

            def attempt(mutant: Mutant = mutant, names: Sequence[str] = names) -> int:
                if not apply(mutant):
                    return 4
                devnull = os.open(os.devnull, os.O_WRONLY)
                os.dup2(devnull, 1)
                os.dup2(devnull, 2)
                return 0 if tests.run(names) else 1

            ended = in_child(attempt) if names else "no test"
            result = {"exit 0": "survived", "exit 1": "killed", "exit 4": "not applied"}.get(ended, ended)
            results[result] += 1
            file.write(json.dumps({**asdict(mutant), "result": result, "tests": len(names)}) + "\n")
            file.flush()
            if result != "killed":
                place = f"{mutant.file}:{mutant.line}"
                print(f"{result}: {place} [{mutant.kind}] {mutant.before}  ->  {mutant.after}", flush=True)
    print(dict(results), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=list(SOURCES), help="files or folders to change")
    parser.add_argument("--sample", type=int, default=500, help="number of mutants, chosen at random; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the sample")
    parser.add_argument("--tests", nargs="+", default=list(TESTS))
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"), help="file of results, which is extended")
    arguments = parser.parse_args()
    paths = [ROOT / path for path in arguments.paths]
    files = sorted(file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py")))
    everything = [mutant for file in files for mutant in mutants_of(str(file.relative_to(ROOT)))]
    chosen = everything
    if 0 < arguments.sample < len(everything):
        chosen = random.Random(arguments.seed).sample(everything, arguments.sample)
    print(f"{len(chosen)} of {len(everything)} mutants in {len(files)} files", flush=True)
    options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", MARKS, *arguments.tests]
    pytest.main(options, plugins=[Tests(lambda tests: test_mutants(tests, chosen, arguments.out))])


if __name__ == "__main__":
    main()
