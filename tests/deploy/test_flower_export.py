"""An exported experiment is an ordinary Flower app, which Flower's own objects run here without a network."""

from __future__ import annotations

import io
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.direct_link import SETTING
from tests.deploy.flower_names import NodeInfo, build_fab_from_disk, load_app

from polyfed import api
from polyfed.cli.app import main
from polyfed.config import parse
from polyfed.deploy.app_bundle import build_app
from polyfed.deploy.export import write_app
from polyfed.deploy.flower_adapter import ClientApp, Context, Grid, Message, RecordDict, Run, ServerApp, TaskIdentity
from polyfed.errors import InputError
from polyfed.runs.folder import RunFolder


class LocalGrid(Grid):
    """A grid that calls a ClientApp in this process for every node."""

    def __init__(self, app: ClientApp, contexts: dict[int, Context]) -> None:
        self._app = app
        self._contexts = contexts
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=number) for number in self._contexts]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = number = f"message-{len(self._replies)}"
            self._replies[number] = self._app(message, self._contexts[message.metadata.dst_node_id])
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies[number] for number in message_ids]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError


def test_an_exported_app_is_bit_identical_to_serial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    settings = {**SETTING, "name": "exported", "rounds": 1}
    serial = api.run(settings, out=tmp_path / "serial")
    write_app(parse(settings), tmp_path / "app")
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(tmp_path / "app"))) as archive:
        app = tomllib.loads(archive.read("pyproject.toml").decode())["tool"]["flwr"]["app"]
    server = load_app(app["components"]["serverapp"], ValueError)
    client = load_app(app["components"]["clientapp"], ValueError)
    assert isinstance(server, ServerApp) and isinstance(client, ClientApp)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    # as in Flower's simulation, nodes are identified by their partition
    nodes = {
        10 + k: Context(1, 10 + k, {"partition-id": k, "num-partitions": 2}, RecordDict(), app["config"])
        for k in range(2)
    }
    server(LocalGrid(client, nodes), Context(1, 1, {}, RecordDict(), app["config"]))
    result = RunFolder(tmp_path / "runs" / "exported").result()
    assert result is not None
    assert result["state_hash"] == serial["state_hash"]


def test_the_app_bundle_is_reproducible_and_holds_no_code() -> None:
    """polyfed writes it itself, so that its bytes are the same at every site."""
    assert build_app() == build_app()
    with zipfile.ZipFile(io.BytesIO(build_app())) as archive:
        assert sorted(archive.namelist()) == [".info/CONTENT", "pyproject.toml"]
        assert not any("code" in name for name in archive.namelist())


def test_an_app_is_not_written_to_a_folder_with_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="not empty"):
        write_app(parse(SETTING), tmp_path)


def test_a_config_with_imports_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="imports"):
        write_app(parse({**SETTING, "imports": ["mine"]}), tmp_path / "app")


def test_commands_name_the_missing_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "flwr", None)
    for command in (["serve", "quickstart"], ["join", "--server", "x:1", "--state", "s", "--rehearsal"]):
        assert main(command) == 2
        assert "pip install 'polyfed[flower]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--rehearsal", "--insecure"], "--name goes with --insecure"),
        (["--rehearsal", "--data", "d", "--insecure", "--name", "a"], "both --data and --model"),
        (["--data", "d", "--insecure", "--name", "a"], "both --data and --model"),
        (["--rehearsal", "--key", "k"], "both --key and --ca"),
        (["--rehearsal"], "both --key and --ca"),
        (["--rehearsal", "--insecure", "--name", "a", "--server", "nowhere"], "give HOST:PORT"),
    ],
)
def test_invalid_options_of_join(
    arguments: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = [] if "--server" in arguments else ["--server", "127.0.0.1:1"]
    assert main(["join", *server, "--state", str(tmp_path / "state"), *arguments]) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [([], "no site is admitted"), (["names=[ana]", "clients=1"], "site 'ana' is not admitted")],
)
def test_a_coordinator_without_sites(
    arguments: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ["--home", str(tmp_path / "home"), "--out", str(tmp_path / "run")]
    assert main(["serve", "quickstart", *arguments, *home]) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_run_refuses_the_flower_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "quickstart", "engine.name=flower", "--out", str(tmp_path / "run")]) == 2
    assert "polyfed serve" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
