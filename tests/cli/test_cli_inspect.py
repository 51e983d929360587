"""`polyfed inspect`: the record of what left, against the result's own byte counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyfed import api
from polyfed.cli.app import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("inspect") / "run"
    result = api.run("quickstart", rounds=2, clients=4, engine={"name": "serial"}, out=folder)
    return folder, result


def test_every_byte_that_left_is_listed(run: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    folder, result = run
    assert main(["inspect", str(folder), "--json"]) == 0
    left = json.loads(capsys.readouterr().out)["left"]
    assert [(item["step"], item["field"], item["messages"], item["clients"]) for item in left] == [
        ("train", "prototypes", 8, 4)
    ]
    assert left[0]["bytes"] == result["bytes"]["by_field"]["up"]["prototypes"] == result["bytes"]["up"]
    assert left[0]["protected"] is False


def test_one_client_in_words(run: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = run
    assert main(["inspect", str(folder), "--client", "2"]) == 0
    shown = capsys.readouterr().out
    assert "what left client 2: mean feature per class, with counts." in shown
    assert "rows of 64" in shown and "No field was clipped or noised" in shown


def test_a_round_done_again_counts_once(run: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """A kill after round 2 was recorded and before its checkpoint: the resumed run records it again."""
    from polyfed.cli.inspecting import _records

    events = [
        {"event": "left", "round": 1, "client": "0"},
        {"event": "round", "round": 1},
        {"event": "left", "round": 2, "client": "0"},
        {"event": "round", "round": 2},
        {"event": "resumed", "round": 1},
        {"event": "left", "round": 2, "client": "0"},
        {"event": "left", "round": 2, "client": "1"},
        {"event": "round", "round": 2},
    ]
    assert [(e["round"], e["client"]) for e in _records(events)] == [(1, "0"), (2, "0"), (2, "1")]


def test_unknown_client_and_no_run_folder(
    run: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(run[0]), "--client", "nobody"]) == 2
    assert "there is no client called 'nobody'" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err
