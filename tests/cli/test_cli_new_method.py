"""`polyfed new method`: the written method runs and passes the battery, and no file is overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests import warm_processes

from polyfed import testing
from polyfed.cli.app import main
from polyfed.core.method import registered

# checks that need the method in an importable module, which this file is not; the battery runs them on every method
APART = {"serial_equals_pool", "needs_checked_before_round_one", "resumed_equals_uninterrupted"}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_method_runs_and_its_test_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "method", "my-first", "--out", "mine"]) == 0
    said = capsys.readouterr().out
    assert "polyfed run quickstart imports=[./mine/my_first.py] method=my-first" in said
    small = ["clients=4", "rounds=1", "data.partition.alpha=1", "data.limit=200", "engine.name=serial"]
    arguments = ["imports=[./mine/my_first.py]", "method=my-first", "method.guidance=0.5", "--json", "-q"]
    assert main(["run", "quickstart", *small, *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["method"] == "my-first"
    for check in testing.checks():
        if check not in APART:
            testing.run_check(check, registered()["my-first"])
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "one_client or sends_matches"]
    done = warm_processes.run(*command, "mine/test_my_first.py")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout and f"{len(testing.checks()) - 2} deselected" in done.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fedproto", "there is a method called 'fedproto' already"),
        ("lg_fedavg", "there is a method called 'lg_fedavg' already"),
        ("fd", "there is a method called 'fd' already"),
        ("FedNew", "use lower-case letters"),
        ("../escape", "use lower-case letters"),
        ("two words", "use lower-case letters"),
        ("class", "would shadow the Python module 'class'"),
        ("random", "would shadow the Python module 'random'"),
    ],
)
def test_names_that_are_refused(name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "method", name]) == 2
    out, err = capsys.readouterr()
    assert said in err and len(err.splitlines()) == 1 and out == ""
    assert list(Path().iterdir()) == []


def test_files_that_exist_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Path("test_mine.py").write_text("precious")
    assert main(["new", "method", "mine"]) == 2
    assert "test_mine.py exists" in capsys.readouterr().err
    assert Path("test_mine.py").read_text() == "precious" and not Path("mine.py").exists()
