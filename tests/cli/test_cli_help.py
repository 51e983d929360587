"""Help: every command has a description and an example, and every argument and option has a description."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from polyfed.cli.app import main
from polyfed.cli.commands import build_command
from polyfed.report.figure_kinds import KINDS


def commands(command: click.Command, path: str = "polyfed") -> Iterator[tuple[str, click.Command]]:
    """Yield all commands with their full names."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {name}")


ALL = dict(commands(build_command()))
LEAVES = [path for path, command in ALL.items() if not getattr(command, "commands", {})]


@pytest.mark.parametrize("path", list(ALL))
def test_every_command_and_parameter_is_described(path: str) -> None:
    command = ALL[path]
    assert command.help and command.help[0].isupper(), path
    for parameter in command.params:
        help_text = str(getattr(parameter, "help", None) or "")
        assert help_text.strip().endswith((".", ")")) and help_text[0].isupper(), (
            f"{path} {parameter.name}: {help_text}"
        )


@pytest.mark.parametrize("path", LEAVES)
def test_every_command_has_an_example_of_its_own(path: str) -> None:
    paragraphs = (ALL[path].help or "").split("\n\n")
    assert paragraphs[-1].startswith(f"Example: {path}") and "\n" not in paragraphs[-1]


@pytest.mark.parametrize("path", list(ALL))
def test_help_is_printed_with_the_descriptions(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*path.split()[1:], "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for parameter in ALL[path].params:
        first_words = " ".join(str(getattr(parameter, "help", "")).split()[:4])
        assert first_words in shown, f"{path}: {parameter.name}"


def test_the_help_of_figure_lists_all_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figure", "--help"]) == 0
    words = set(capsys.readouterr().out.replace(",", " ").replace(".", " ").replace("│", " ").split())
    assert set(KINDS) <= words
