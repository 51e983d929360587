"""Commands do cheap things first: wrong input is found without torch, and nothing imports torch's compiler."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from polyfed.cli.app import main
from polyfed.models.zoo import built_in_models
from polyfed.runs.atomic_files import check_file_writable, check_folder_creatable

SCRIPT = """
import json, sys
from polyfed.cli.app import main
found = []
for arguments in json.loads(sys.argv[1]):
    code = main(arguments)
    found.append([code, [name for name in json.loads(sys.argv[2]) if name in sys.modules]])
sys.stderr.write("\\n" + json.dumps(found))
"""
COMPILER = ["torch._dynamo", "torch._inductor", "sympy"]


def imported(commands: list[list[str]], modules: list[str], folder: Path) -> list[tuple[int, list[str]]]:
    """Run commands in a new interpreter. Return their exit codes, and which modules were imported after each."""
    command = [sys.executable, "-c", SCRIPT, json.dumps(commands), json.dumps(modules)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    return [(code, found) for code, found in json.loads(done.stderr.splitlines()[-1])]


LIGHT: list[tuple[list[str], int]] = [
    (["--help"], 0),
    (["run", "--help"], 0),
    (["list", "methods"], 0),
    (["list", "models"], 0),
    (["list", "groups"], 0),
    (["list", "datasets"], 0),
    (["run", "quickstart", "method=fedprotto"], 2),
    (["check", "quickstart", "method=fedprotto"], 2),
    (["sweep", "quickstart", "method=local,fedprotto"], 2),
    (["check", "quickstart", "rond=3"], 2),
    (["check", "quickstart", "method.guidnce=2"], 2),
    (["check", "quickstart", "method.guidance=high"], 2),
    (["check", "quickstart", "method.guidance=-1"], 2),
    (["check", "quickstart", "server_filter=incoo"], 2),
    (["check", "quickstart", "models.group=tiny5"], 2),
    (["check", "quickstart", "models.group=[tiny-cn]"], 2),
    (["check", "quickstart", "data.dataset=digit"], 2),
    (["check", "quickstart", "data.dataset=mnist", "data.root=nowhere"], 2),
    (["check", "quickstart", "data.partition.scheme=dirichle"], 2),
    (["check", "quickstart", "imports=[nosuch.py]"], 2),
    (["run", "quickstart", "track=[tensorbord]"], 2),
    (["run", "quickstart", "--out", "file.txt/run"], 2),
    (["report", ".", "--out", "nowhere/report.html"], 2),
    (["figure", "curves", ".", "--out", "nowhere/curves.png"], 2),
    (["attack", "nowhere"], 2),
]


@pytest.fixture(scope="module")
def light_commands(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, list[str]]]:
    """Run all of `LIGHT` in one process. A module stays imported, so every later command would have it as well."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "file.txt").write_text("not a folder")
    return imported([arguments for arguments, _ in LIGHT], ["torch", "matplotlib", "sklearn"], folder)


@pytest.mark.parametrize("number", range(len(LIGHT)), ids=lambda k: " ".join(LIGHT[k][0]))
def test_help_lists_and_refusals_do_not_import_torch(
    number: int, light_commands: list[tuple[int, list[str]]]
) -> None:
    assert light_commands[number] == (LIGHT[number][1], [])


OWN_MODEL = """
from torch import nn
from polyfed import models

models.register("own", lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, classes)))
models.register("named", lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 10)), head="2")
"""


def test_check_and_run_do_not_import_the_compiler_of_torch(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_MODEL)
    own = ["imports=[own.py]", "models.group=[own, named, tiny-cnn]"]
    commands = [["check", "quickstart"], ["run", "quickstart", "rounds=1"], ["run", "quickstart", "rounds=1", *own]]
    commands = [[*command, "clients=4", "engine.name=serial"] for command in commands]
    commands[-1] += ["--out", "own"]
    assert imported(commands, ["torch", *COMPILER], tmp_path) == [(0, ["torch"])] * 3


def test_the_list_of_models_is_what_the_models_are() -> None:
    # scripts/write_zoo.py writes the file
    import dataclasses

    from polyfed.models import describe
    from polyfed.models.catalogue import ARCHITECTURES

    assert list(built_in_models()) == list(ARCHITECTURES)
    for name, entry in built_in_models().items():
        assert json.loads(json.dumps(dataclasses.asdict(describe(name)))) == entry


def test_groups_of_tables_series_and_texts_are_complete() -> None:
    from polyfed.models import groups, tabular, text, time_series

    assert list(groups.TABLE) == list(tabular.TABLE)
    assert list(groups.SERIES) == list(time_series.SERIES)
    assert list(groups.TEXT) == list(text.TEXT)


def test_output_paths_are_checked_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_file_writable(tmp_path / "report.html")
    check_folder_creatable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    for arguments, said in [
        (["report", str(tmp_path), "--out", str(tmp_path)], "is a folder; name a file in it"),
        (["report", str(tmp_path), "--out", "/proc/x.html"], "/proc/x.html cannot be written"),
        (["run", "quickstart", "--out", str(tmp_path / "file" / "run")], "file is not a folder"),
        (["run", "quickstart", "--out", "/proc/run"], "/proc/run cannot be written"),
    ]:
        assert main(arguments) == 2
        assert said in capsys.readouterr().err
