"""Records of rounds and results: round trips, results of earlier releases, and damaged input."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyfed
from polyfed.runs.discovery import ANY_RUN_FILE, find_run_folders
from polyfed.runs.folder import RunFolder
from polyfed.runs.records import VERSION, Accuracy, Result, RoundRecord

RECORD = RoundRecord(
    round=3,
    accuracy={"personal": Accuracy(0.5, [0.25, None, 0.75])},
    loss=1.25,
    up={"weights": 100, "counts": 8},
    down={"weights": 300},
    overhead={"up": 7, "down": 9},
    seconds={"total": 2.0, "train": 1.5},
    failures=[{"round": 3, "client": "1", "steps": ["train"], "kind": "raised", "message": "x"}],
    released={"weights": {"0": 1}},
)
RESULT: dict[str, Any] = {
    "name": "n",
    "method": "local",
    "seed": 1,
    "rounds": 2,
    "data": {"dataset": "digits"},
    "accuracy": {
        "personal": {"final": 0.5, "best": 0.75, "by_client": [0.5], "by_round": [0.75, 0.5]},
        "global": None,
    },
    "loss": {"by_round": [2.0, None]},
    "bytes": {"up": 3, "down": 5, "up_by_round": [1, 2], "down_by_round": [2, 3]},
    "seconds": {"total": 1.5, "by_round": [0.5, 1.0]},
    "failures": [],
}


def test_record_survives_json() -> None:
    stored = json.loads(json.dumps(RECORD.to_dict()))
    assert RoundRecord.from_dict(stored) == RECORD
    assert RoundRecord.from_damaged(stored) is not None
    assert (RECORD.upload_bytes, RECORD.download_bytes) == (108, 300)
    assert RECORD.accuracy_value("personal") == 0.5 and RECORD.accuracy_value("global") is None
    assert RECORD.without_clients().accuracy == {"personal": Accuracy(0.5)}


def test_record_without_protected_fields_has_no_releases() -> None:
    raw = RECORD.to_dict()
    del raw["released"]
    assert "released" not in RoundRecord.from_dict(raw).to_dict()


@pytest.mark.parametrize("key", ["round", "accuracy", "loss", "up", "down", "seconds"])
def test_strict_reading_rejects_missing_values(key: str) -> None:
    raw = {name: value for name, value in RECORD.to_dict().items() if name != key}
    with pytest.raises(KeyError):
        RoundRecord.from_dict(raw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(damage=st.dictionaries(st.sampled_from([*RECORD.to_dict(), "other"]), JSON))
def test_damaged_records_never_raise_and_hold_numbers_only(damage: dict[str, Any]) -> None:
    record = RoundRecord.from_damaged({**RECORD.to_dict(), **damage})
    if record is None:
        assert type(damage["round"]) is not int or abs(damage["round"]) >= 2**63
        return
    json.dumps({**record.to_dict(), "failures": []}, allow_nan=False)
    assert record.upload_bytes + record.download_bytes == sum([*record.up.values(), *record.down.values()])
    assert all(isinstance(one.value, float) for one in record.accuracy.values())


def test_result_is_a_dictionary_with_typed_properties() -> None:
    result = Result(RESULT)
    assert result == RESULT and isinstance(result, Mapping) and json.loads(json.dumps(result)) == RESULT
    result.check()
    personal = result.accuracy["personal"]
    assert personal is not None and (personal.final, personal.best, personal.best_round) == (0.5, 0.75, None)
    assert result.accuracy["global"] is None
    assert (result.name, result.method, result.dataset, result.seed, result.rounds) == ("n", "local", "digits", 1, 2)
    assert (result.upload_bytes, result.download_bytes, result.seconds) == (3, 5, 1.5)
    assert (result.loss_by_round, result.seconds_by_round, result.failures) == ([2.0, None], [0.5, 1.0], [])
    assert (result.upload_bytes_by_round, result.download_bytes_by_round) == ([1, 2], [2, 3])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": 3}, "holds no result"),
        ({"bytes": {}}, "holds no result"),
        ({"accuracy": {"personal": None}}, "holds no result"),
        ({"accuracy": 3}, "holds no result"),
        ({"seconds": {"total": "long"}}, "holds no result"),
        ({"version": VERSION + 1}, "has version 2; this release reads version 1"),
        ({"version": "new"}, "has version 'new'"),
    ],
)
def test_invalid_results(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Result({**RESULT, **changes}).check()


def test_real_run_writes_the_version_and_its_rounds(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"rounds": 2, "clients": 2, "data": {"limit": 80}, "engine": {"name": "serial"}}
    result = polyfed.run("quickstart", method="local", out=tmp_path / "run", **keys)
    folder = RunFolder(tmp_path / "run")
    assert result["version"] == VERSION and folder.result() == result
    rounds = [RoundRecord.from_dict(event) for event in folder.events() if event["event"] == "round"]
    personal = result["accuracy"]["personal"]
    assert [record.accuracy_value("personal") for record in rounds] == personal["by_round"]
    assert list(rounds[-1].accuracy["personal"].by_client) == personal["by_client"]


def test_records_need_no_torch() -> None:
    code = (
        "import sys, polyfed.runs.records, polyfed.runs.folder, polyfed.runs.discovery, polyfed.runs.config_text\n"
        "assert not {'torch', 'pydantic'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_run_folders_are_found_below_a_folder(tmp_path: Path) -> None:
    for name in ("b", "a/deep", ".hidden/run", "b/artifacts/inner"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.yaml").touch()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "events.jsonl").touch()
    (tmp_path / "link").symlink_to(tmp_path / "b")

    def names(**options: Any) -> list[str]:
        return [str(Path(path).relative_to(tmp_path)) for path in find_run_folders(str(tmp_path), **options)]

    assert names() == ["a/deep", "b"]
    assert names(markers=ANY_RUN_FILE) == ["a/deep", "b", "damaged"]
    assert names(max_depth=1) == ["b"]
    assert list(find_run_folders(str(tmp_path / "b"))) == [str(tmp_path / "b")]
    assert list(find_run_folders(str(tmp_path / "nowhere"))) == []
