"""Examples of README and docs: find the code blocks of a page and run them with small settings.

The fenced blocks of a page run in order, in one folder and one Python namespace. An HTML comment in the line above a
block changes that:

    <!-- not run: needs a cluster -->     commands are parsed by the real command line; Python is compiled
    <!-- checked: takes ten minutes -->   commands are parsed, and their configs are checked, but nothing is trained

| language | what happens |
|---|---|
| `bash` | every line starts with `polyfed`; other commands need a comment |
| `console` | a transcript: lines that start with `$` are such commands |
| `python` | runs in the namespace of the page; with `title="name.py"` it is saved as this file instead |
| `yaml` | is a config, on top of the preset `quickstart` |
| `text`, `json`, `mermaid` | nothing |
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from polyfed import api
from polyfed.cli.app import main
from polyfed.cli.commands import build_command
from polyfed.config import load_config, parse
from polyfed.config.early_checks import check_names
from polyfed.config.loading import read_source
from polyfed.config.sweep import parse_seeds, plan_sweep
from polyfed.runs.config_text import read_yaml

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if not page.name.endswith(".notes.md")  # parts of other pages
]
# Training in examples is this small, whatever they say, so that all of them together take less than a minute.
SMALL: dict[str, Any] = {"rounds": 1, "clients": 4, "train.epochs": 1, "evaluate.every": 1}
LIMITS = {"data.limit": 200, "data.test_limit": 100}  # unless a command uses data of its own
ENGINE = {"engine.name": "serial"}  # unless a command sets the engine
SEEDS = "0"

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL
)
MARK = re.compile(r"<!-- (not run|checked): .+ -->\s*$")
LANGUAGES = {"bash", "console", "python", "yaml", "text", "json", "mermaid"}
TRAINING = {"run", "check"}


@dataclass(frozen=True)
class Block:
    """A fenced code block."""

    page: Path
    line: int
    language: str
    text: str
    mark: str | None  # "not run", "checked" or None
    title: str | None = None  # the name of a file

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> list[str]:
        """Return the commands of a shell block, with continued lines joined and without comments."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        stripped = (shlex.join(shlex.split(line, comments=True)) for line in lines)
        return [line for line in stripped if line]


def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        before = text[: match.start()]
        mark = MARK.search(before.rstrip("\n").rpartition("\n")[2])
        content = re.sub(f"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        title = re.search(r'title="([^"]+)"', match["info"])
        line, reason = before.count("\n") + 1, mark[1] if mark else None
        found.append(Block(page, line, match["language"], content, reason, title[1] if title else None))
    return found


def polyfed_arguments(command: str) -> list[str] | None:
    """Return the arguments of a polyfed command; None for another command."""
    words = shlex.split(command)
    return words[1:] if Path(words[0]).name == "polyfed" else None


def parsed(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """Parse arguments with the real command line. Return the name of the command and its parameters."""
    command: click.Command = build_command()
    context = click.Context(command, info_name="polyfed")
    names = []
    while isinstance(command, click.Group):
        name, found, arguments = command.resolve_command(context, arguments)
        assert name is not None and found is not None
        names.append(name)
        command, context = found, click.Context(found, info_name=name, parent=context)
    context = command.make_context(names[-1], list(arguments), parent=context.parent)
    return " ".join(names), context.params


def check_command(arguments: list[str]) -> None:
    """Parse a command, and check the names in the config of one that trains."""
    name, params = parsed(arguments)
    if name in TRAINING:
        check_names(load_config(params["config"], params["overrides"] or []))
    elif name == "sweep":
        for run in plan_sweep(read_source(params["config"]), params["axes"] or [], [0], Path("runs")):
            check_names(run.config)


def run_command(arguments: list[str]) -> None:
    """Run a command with small settings. A sweep runs in this process, one run after the other."""
    name, params = parsed(arguments)
    if name in TRAINING:
        arguments = small_arguments(arguments)
    elif name == "sweep":
        arguments = small_arguments(arguments)
        _, params = parsed(arguments)
        folder = Path(params["out"] or f"runs/{Path(params['config']).stem}-sweep")
        for run in plan_sweep(read_source(params["config"]), params["axes"], parse_seeds(SEEDS), folder):
            api.execute(api.open_run(run.config, Path(run.folder)))
        return
    code = main(arguments)
    assert code == 0, f"polyfed {shlex.join(arguments)} ended with exit code {code}"


def small_arguments(arguments: list[str]) -> list[str]:
    """Return the arguments of a command that trains, with the small settings in place of others."""
    keys = {word.partition("=")[0] for word in arguments}
    settings = dict(SMALL)
    if not any(key.startswith("data.root") for key in keys):
        settings |= LIMITS
    if not any(key.startswith("engine.") for key in keys):
        settings |= ENGINE
    kept = [word for word in arguments if word.partition("=")[0] not in settings]
    return [*kept, *(f"{key}={value}" for key, value in settings.items())]


def small_settings(settings: dict[str, Any], *, data: bool) -> dict[str, Any]:
    """Return keyword arguments of `polyfed.run` or `polyfed.sweep` with the small settings. `data`: it gets data."""
    small = {**settings, "engine": {"name": "serial"}}
    for key in ("rounds", "clients"):
        small[key] = min(SMALL[key], settings.get(key, SMALL[key]))
    if not data:
        small["data"] = {"limit": LIMITS["data.limit"], "test_limit": LIMITS["data.test_limit"]}
    return small


def check_yaml(block: Block) -> None:
    """Check a config, on top of the quickstart."""
    raw = read_source("quickstart")
    for key, value in read_yaml(block.text).items():
        raw[key] = {**raw[key], **value} if isinstance(raw.get(key), dict) and isinstance(value, dict) else value
    parse(raw)


def shell_blocks() -> Iterator[Block]:
    for page in PAGES:
        yield from (block for block in blocks(page) if block.language in {"bash", "console"})
