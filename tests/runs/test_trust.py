"""Run folders of other people: no code that they name is imported unless the user says so.

The rooms `report` and `ui` cannot import user code: tests/test_rooms.py keeps them from importing `federation`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from polyfed import api, load_client, sweep
from polyfed.cli.app import main
from polyfed.config import load_config, parse
from polyfed.config.trust import check_source_trusted, named_code
from polyfed.core.method import forget, registered
from polyfed.errors import InputError
from polyfed.runs import origin

PLANTED = """
from dataclasses import dataclass
from pathlib import Path
from polyfed.core import Method, register

with Path(__file__).with_suffix(".log").open("a") as log:
    log.write("imported ")

@register("toy-planted")
@dataclass(frozen=True)
class Planted(Method):
    def round(self, server, cohort):
        pass
"""
SETTINGS = ("method=toy-planted", "clients=2", "rounds=1", "engine.name=serial", "data.limit=60")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run of this user with a module of its own, which logs its imports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYFED_CONFIG", str(tmp_path / "me"))
    Path("planted.py").write_text(PLANTED)
    assert main(["run", "quickstart", *SETTINGS, "imports=[./planted.py]", "--out", "run", "-q"]) == 0
    Path("planted.py").write_text(PLANTED + "# changed, so that every use would import it again\n")
    Path("planted.log").unlink()
    return tmp_path / "run"


def test_the_folder_of_another_user_is_not_imported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert origin.is_own(folder)
    monkeypatch.setenv("POLYFED_CONFIG", str(folder.parent / "somebody else"))
    assert not origin.is_own(folder)
    for command in (["inspect", "run"], ["compare", "run"], ["resume", "run"]):
        assert main(command) == 0, capsys.readouterr().err  # of a finished run
    capsys.readouterr()
    config = str(folder / "config.yaml")
    for command, remedy in (
        (["check", config], "copy the config to a file of your own"),
        (["run", config, "--out", "mine"], "add --trust"),
        (["sweep", config, "rounds=1,2", "--out", "mine"], "add --trust"),
        (["serve", config, "--insecure", "--out", "mine"], "add --trust"),
        (["export-app", config, "mine"], "add --trust"),
        (["export", "run", "-o", "models"], "add --trust"),
        (["attack", "run"], "add --trust"),
        (["attack", "run", "--membership"], "add --trust"),
        (["predict", "run", "--client", "0", "--data", "."], "add --trust"),
    ):
        assert main(command) == 2
        shown = " ".join(capsys.readouterr().err.split())
        assert "was not made by you on this machine, or was changed since, and it names code" in shown
        assert "planted.py); read this code, then" in shown and remedy in shown
    for call in (
        lambda: load_client(folder, 0),
        lambda: api.run(config, out="mine"),
        lambda: sweep(Path(config), {"rounds": [1, 2]}, out="mine"),
    ):
        with pytest.raises(InputError, match="was not made by you"):
            call()
    assert not Path("planted.log").exists() and not Path("mine").exists()


def test_an_unfinished_run_of_another_user_needs_trust(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFED_CONFIG", str(folder.parent / "somebody else"))
    (folder / "result.json").unlink()
    Path("planted.py").write_text(PLANTED)  # as the run recorded it
    with pytest.raises(InputError, match="names code to import"):
        api.resume(folder)
    api.open_existing_run(folder, trust=True)
    assert origin.is_own(folder)  # trust is remembered
    api.open_existing_run(folder)


def test_exported_models_import_their_code_only_with_trust(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("planted.py").write_text(PLANTED)
    assert main(["export", "run", "--client", "0", "-o", "models"]) == 0
    forget([registered()["toy-planted"].__module__])  # as in a new process
    Path("planted.py").write_text(PLANTED + "# changed, so that every use would import it again\n")
    Path("planted.log").unlink(missing_ok=True)
    np.savez("x.npz", x=np.zeros((2, 8, 8), dtype=np.uint8))
    predict = ["predict", "models", "--data", "x.npz"]
    assert main(predict) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "the method 'toy-planted' of models/0 is not one of polyfed's" in shown
    assert "its code is in" in shown and "planted.py: read this code, then add --trust" in shown
    assert not Path("planted.log").exists()
    assert main([*predict, "--trust"]) == 0
    assert Path("planted.log").read_text() == "imported "
    assert load_client("models", 0, trust=True).name == "0"


def test_configs_of_another_user_and_trackers_are_code_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "experiment.yaml"
    file.write_text("{method: local, clients: 2, rounds: 1, track: ['planted:Tracker']}")
    config = load_config(file)
    assert named_code(config) == ["planted:Tracker"]
    assert named_code(parse({"method": "local", "track": ["tensorboard"]})) == []
    check_source_trusted(config, file)
    monkeypatch.setattr(os, "getuid", lambda: file.stat().st_uid + 1)
    if file.stat().st_uid == 0:
        check_source_trusted(config, file)  # the administrator can change polyfed itself
        os.chown(file, 12345, -1)
    with pytest.raises(InputError, match=r"belongs to another user .* \(planted:Tracker\); read this code"):
        api.run(file, out=tmp_path / "run")
    check_source_trusted(config, file, trust=True)
    check_source_trusted(parse({"method": "local"}), file)  # without code
    check_source_trusted(config, "quickstart")
    assert not (tmp_path / "run").exists()


def test_a_changed_folder_is_not_trusted(folder: Path) -> None:
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    assert origin.is_own(copy)  # an unchanged copy of one's own run
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(text.replace("planted.py", "other.py"))
    assert not origin.is_own(copy)
    with pytest.raises(InputError, match=r"other\.py\); read this code"):
        load_client(copy, 0)
    shutil.copytree(folder, folder.with_name("code"))
    (folder.with_name("code") / "user_code.py").write_text("import os")
    assert not origin.is_own(folder.with_name("code"))
    (folder / ".origin").write_bytes(b"\xff")
    assert not origin.is_own(folder)


def test_folders_that_name_no_code_need_no_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFED_CONFIG", "/proc/no such folder")  # no key can be written
    settings = {"clients": 2, "rounds": 1, "method": "local", "engine": {"name": "serial"}, "data": {"limit": 60}}
    api.run(settings, out=tmp_path / "run")
    assert not origin.is_own(tmp_path / "run")
    assert load_client(tmp_path / "run", 0).name == "0"
