"""Every command and every Python block of README and docs runs, or a comment above it says why it does not."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.docs import examples
from tests.docs.examples import LANGUAGES, PAGES, ROOT, Block, blocks

import polyfed

RUN = {"bash", "console", "python", "yaml"}


def pages_with(*, marked: bool) -> list[str]:
    """Return the pages that have blocks with, or without, a comment."""
    chosen = [
        page for page in PAGES if any((b.mark is not None) == marked and b.language in RUN for b in blocks(page))
    ]
    return [str(page.relative_to(ROOT)) for page in chosen]


def small(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `polyfed.run` or `polyfed.sweep` with small settings."""

    def call(*args: Any, data: Any = None, **settings: Any) -> Any:
        seeds = {"seeds": [0]} if "seeds" in settings else {}
        reduced = examples.small_settings(settings, data=data is not None)
        return function(*args, **{**({} if data is None else {"data": data}), **reduced, **seeds})

    return call


@pytest.fixture
def page_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("run", "sweep"):
        monkeypatch.setattr(polyfed, name, small(getattr(polyfed, name)))
    return tmp_path


@pytest.mark.parametrize("name", pages_with(marked=False))
def test_the_examples_of_a_page_run(name: str, page_folder: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "example"}
    for block in blocks(ROOT / name):
        if block.mark is None:
            run_block(block, page_folder, namespace)


def run_block(block: Block, folder: Path, namespace: dict[str, Any]) -> None:
    if block.language in {"bash", "console"}:
        for command in block.commands():
            arguments = examples.polyfed_arguments(command)
            assert arguments is not None, f"{block.place}: '{command}' is not a polyfed command; mark the block"
            try:
                examples.run_command(arguments)
            except Exception as error:
                raise AssertionError(f"{block.place}: {command}: {error}") from error
    elif block.language == "yaml":
        examples.check_yaml(block)
    elif block.title is not None:
        (folder / block.title).write_text(block.text, encoding="utf-8")
    elif block.language == "python":
        file = folder / f"line_{block.line}.py"  # a file, because polyfed reads the source of classes and functions
        file.write_text(block.text, encoding="utf-8")
        try:
            exec(compile(block.text, str(file), "exec"), namespace)
        except Exception as error:
            raise AssertionError(f"{block.place}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("name", pages_with(marked=True))
def test_the_examples_that_do_not_run_are_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for block in blocks(ROOT / name):
        if block.mark is not None and block.language in {"bash", "console"}:
            for command in block.commands():
                arguments = examples.polyfed_arguments(command)
                if arguments is not None:
                    check = examples.check_command if block.mark == "checked" else examples.parsed
                    try:
                        check(arguments)
                    except Exception as error:
                        raise AssertionError(f"{block.place}: {command}: {error}") from error
        elif block.mark is not None and block.language == "python":
            compile(block.text, block.place, "exec")


def test_every_block_names_its_language() -> None:
    wrong = [
        f"{block.place}: '{block.language}'"
        for page in PAGES
        for block in blocks(page)
        if block.language not in LANGUAGES
    ]
    assert wrong == []


def test_commands_of_one_block_or_of_a_wrong_option_are_told_apart(tmp_path: Path) -> None:
    page = ROOT / "docs" / "index.md"
    text = "polyfed list methods   # all\nmake run\npolyfed run quickstart \\\n  rounds=1\n"
    assert Block(page, 1, "bash", text, None).commands() == [
        "polyfed list methods",
        "make run",
        "polyfed run quickstart rounds=1",
    ]
    assert examples.polyfed_arguments("make run") is None
    assert examples.parsed(["compare", "runs", "--json"])[0] == "compare"
    with pytest.raises(Exception, match="No such option"):
        examples.parsed(["compare", "runs", "--jsn"])


def test_the_commands_of_make_run_are_right() -> None:
    shown = subprocess.run(["make", "-n", "run", "run-dffke"], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line.partition(" > ")[0] for line in shown.stdout.splitlines() if not line.startswith("echo")]
    commands = [arguments for line in lines if line and (arguments := examples.polyfed_arguments(line)) is not None]
    assert [arguments[0] for arguments in commands].count("sweep") == 5
    for arguments in commands:
        examples.check_command(arguments)
