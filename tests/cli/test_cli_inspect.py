"""`polyfed inspect`: the listed uploads against the byte counts of the result."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from polyfed import api
from polyfed.cli.app import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("inspect") / "run"
    result = api.run("quickstart", rounds=2, clients=4, engine={"name": "serial"}, out=folder)
    return folder, result


def test_every_uploaded_byte_is_listed(run: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    folder, result = run
    assert main(["inspect", str(folder), "--json"]) == 0
    left = json.loads(capsys.readouterr().out)["left"]
    assert [(item["step"], item["field"], item["messages"], item["clients"]) for item in left] == [
        ("train", "prototypes", 8, 4)
    ]
    assert left[0]["bytes"] == result["bytes"]["by_field"]["up"]["prototypes"] == result["bytes"]["up"]
    assert left[0]["protected"] is False and left[0]["protection"] is None
    assert sum(left[0]["bytes_by_client"].values()) == left[0]["bytes"]
    assert len(left[0]["bytes_by_client"]) == 4


def test_uploads_of_one_client(run: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = run
    assert main(["inspect", str(folder), "--client", "2"]) == 0
    shown = capsys.readouterr().out
    assert "fedproto on digits: uploads of client 2 in 2 of 2 rounds (finished)." in shown
    assert "By design, a client of this method uploads: mean feature per class, with counts." in shown
    assert "rows of 64" in shown and "No field was clipped or noised" in shown
    assert "so it reveals these classes" in shown


def test_a_row_for_every_client(run: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = run
    assert main(["inspect", str(folder), "--each"]) == 0
    shown = capsys.readouterr().out
    assert "prototypes, bytes" in shown
    assert all(model in shown for model in ("tiny-cnn", "tiny-resnet", "tiny-mobile", "tiny-mlp"))


def test_protection_is_read_from_the_run(
    run: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run[0], tmp_path / "run")
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    config["privacy"] = {"prototypes": {"clip": 0.5, "epsilon": 1.0, "delta": 1e-5}}
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    spent = {name: {"epsilon": 1.5 if name == "0" else 1.25, "delta": 1e-5} for name in "0123"}
    field = {"epsilon": 1.5, "delta": 1e-5, "holds_for": "any change", "not_protected": "which classes have a row"}
    result["privacy"] = {"clients": spent, "fields": {"prototypes": field}, "no_guarantee": [], "unprotected": []}
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    assert main(["inspect", str(tmp_path / "run")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "clipped to norm 0.5 and noise for epsilon 1.0" in shown
    assert "all protected fields together: epsilon 1.25 to 1.5 by client at delta 1e-05." in shown
    assert "'prototypes' alone: epsilon 1.5 at delta 1e-05, for any change." in shown
    assert "Uploaded with 'prototypes' without protection: which classes have a row." in shown
    assert "No field was clipped" not in shown


def test_a_run_without_uploads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    api.run("quickstart", method="local", rounds=1, clients=2, engine={"name": "serial"}, out=tmp_path / "run")
    assert main(["inspect", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.endswith("Nothing was uploaded.\n")


def test_unknown_client_and_no_run_folder(
    run: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(run[0]), "--client", "nobody"]) == 2
    assert "there is no client called 'nobody'" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err
