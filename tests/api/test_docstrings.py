"""Every public function has examples in its docstring, and they give what they say."""

from __future__ import annotations

import doctest
import inspect
import shutil
from pathlib import Path
from typing import Any

import pytest

import polyfed
import polyfed.report.python_functions  # a part of the package that it imports later

FUNCTIONS = [name for name in polyfed.__all__ if name not in ("data", "errors", "models", "report")]
OTHERS = ["data.from_arrays", "data.from_torch", "data.load", "models.register", "report.python_functions.report"]
SMALL: dict[str, Any] = {"clients": 3, "rounds": 2, "data": {"limit": 120}, "engine": {"name": "serial"}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs that the examples read."""
    folder = tmp_path_factory.mktemp("examples") / "runs"
    polyfed.run("quickstart", method="fedproto", out=folder / "digits", **SMALL)
    polyfed.run("quickstart", method="local", out=folder / "local", **SMALL)
    return folder


@pytest.mark.parametrize("name", [*FUNCTIONS, *OTHERS])
def test_examples(name: str, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(runs, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    value: Any = polyfed
    for part in name.split("."):
        value = getattr(value, part)
    text = inspect.getdoc(value) or ""
    found = doctest.DocTestParser().get_doctest(text, {"polyfed": polyfed}, name, None, None)
    runner = doctest.DocTestRunner()
    output: list[str] = []
    runner.run(found, out=output.append)
    assert found.examples and not output, "".join(output)
