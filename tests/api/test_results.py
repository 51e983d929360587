"""Results in Python: what they print, what their run folder adds, and the functions beside the commands."""

from __future__ import annotations

import builtins
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

import polyfed
from polyfed.errors import InputError
from polyfed.progress.python_progress import NotebookProgress, progress_observers
from polyfed.runs.records import Result, RoundRecord

SETTINGS: dict[str, Any] = {"clients": 3, "rounds": 2, "engine": {"name": "serial"}, "method": "fedproto"}


class Observer:
    """Collects what a run reports."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def started(self, config: Any, folder: Path, done: int) -> None:
        self.calls.append((config.rounds, folder, done))

    def round_done(self, record: RoundRecord) -> None:
        self.calls.append(record)

    def note(self, sentence: str) -> None: ...


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Observer]:
    observer = Observer()
    folder = tmp_path_factory.mktemp("runs") / "one"
    data = {"limit": 200, "partition": {"scheme": "iid"}}
    asked = {"metrics": ["macro_f1"]}
    return polyfed.run(
        "quickstart", data=data, evaluate=asked, out=folder, observers=[observer], **SETTINGS
    ), observer


def test_a_loaded_result_is_the_same_object(finished: tuple[Result, Observer]) -> None:
    result, observer = finished
    assert result.folder is not None
    loaded = polyfed.load(result.folder)
    assert loaded == result == json.loads((result.folder / "result.json").read_text())
    assert loaded.folder == result.folder and repr(loaded) == repr(result)
    assert observer.calls[0] == (2, result.folder, 0)
    assert [record.to_dict() for record in loaded.history] == [record.to_dict() for record in observer.calls[1:]]
    assert [record.round for record in loaded.history] == [1, 2]


def test_it_prints_as_a_table(finished: tuple[Result, Observer]) -> None:
    result, _ = finished
    title, *rows = repr(result).splitlines()
    assert title == "fedproto on digits, 2 rounds, seed 0"
    measured = ["personal accuracy", "global accuracy", "personal macro f1", "global macro f1"]
    assert [row.split("  ")[1] for row in rows] == [*measured, "sent", "time", "folder"]
    score = result["metrics"]["global"]["macro_f1"]["final"]
    assert f"{100 * score:.2f} %" in rows[3]
    final = result["accuracy"]["personal"]["final"]
    assert f"{100 * final:.2f} %" in rows[0]
    page = result._repr_html_()
    assert page is not None and page.startswith("<table>") and str(result.folder) in page
    assert repr(Result({"a": 1})) == "{'a': 1}" and Result({"a": 1})._repr_html_() is None


def test_clients_and_data_frames(finished: tuple[Result, Observer]) -> None:
    result, _ = finished
    partition = json.loads((Path(str(result.folder)) / "clients.json").read_text())["clients"]
    assert [client.samples for client in result.clients] == [sum(entry["train"].values()) for entry in partition]
    assert [client.model for client in result.clients] == ["tiny-cnn", "tiny-resnet", "tiny-mobile"]
    assert [client.accuracy for client in result.clients] == result["accuracy"]["personal"]["by_client"]
    assert [client.global_accuracy for client in result.clients] == result["accuracy"]["global"]["by_client"]
    rounds = result.to_pandas()
    assert rounds["personal"].tolist() == result["accuracy"]["personal"]["by_round"]
    assert rounds["global macro_f1"].tolist() == result["metrics"]["global"]["macro_f1"]["by_round"]
    assert rounds.index.tolist() == [1, 2]
    assert result.to_pandas("clients").loc["1", "model"] == "tiny-resnet"
    with pytest.raises(InputError, match="there is no table 'losses'"):
        result.to_pandas("losses")


def test_without_pandas_one_sentence(finished: tuple[Result, Observer], monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **options: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(InputError, match="to_pandas needs pandas; install it with pip install pandas"):
        finished[0].to_pandas()


def test_a_result_without_a_folder_and_a_folder_without_a_result(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not read from a run folder"):
        _ = Result({"rounds": 1}).history
    with pytest.raises(InputError, match="is not a run folder"):
        polyfed.load(tmp_path)
    (tmp_path / "config.yaml").write_text("method: {name: local}\n")
    with pytest.raises(InputError, match=r"has not finished; resume it with polyfed\.resume"):
        polyfed.load(tmp_path)


def test_report_and_figure(finished: tuple[Result, Observer], tmp_path: Path) -> None:
    result, _ = finished
    page = polyfed.report(result, tmp_path / "report.html")
    assert page == tmp_path / "report.html" and "fedproto" in page.read_text()
    importlib.import_module("polyfed.report.page")  # afterwards `polyfed.report` is the package
    assert polyfed.report([str(result.folder)], tmp_path / "two.html").exists()
    drawn = polyfed.figure("curves", result, tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").exists() and drawn._repr_png_().startswith(b"\x89PNG")
    assert drawn.save(tmp_path / "curves.png").read_bytes() == drawn.png
    with pytest.raises(InputError, match="no runs are given"):
        polyfed.report([])


def test_sweep_and_compare(tmp_path: Path) -> None:
    settings = {**SETTINGS, "rounds": 1, "data": {"limit": 200, "partition": {"scheme": "iid"}}}
    axes: dict[str, list[Any]] = {"train.lr": [0.01, 0.1], "method": ["local", "fedproto"]}
    del settings["method"]
    runs = polyfed.sweep("quickstart", axes, out=tmp_path, **settings)
    assert len(runs) == 4 and len({result["state_hash"] for result in runs}) == 4
    assert [result.method for result in runs] == ["local", "fedproto", "local", "fedproto"]
    assert "train.lr" in repr(runs) and "fedproto" in repr(runs)
    again = polyfed.sweep("quickstart", axes, out=tmp_path, **settings)
    assert list(again) == list(runs)  # finished runs are read
    assert str(polyfed.compare(runs, by=["train.lr"])) == str(polyfed.compare([tmp_path], by=["train.lr"]))
    with pytest.raises(InputError, match="the values of 'rounds' are '12'; expected a list of values"):
        polyfed.sweep("quickstart", {"rounds": "12"}, out=tmp_path)


def test_progress_is_shown_when_it_is_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = {"limit": 200, "partition": {"scheme": "iid"}}
    polyfed.run("quickstart", data=data, out=tmp_path / "quiet", **SETTINGS)
    assert capsys.readouterr() == ("", "")
    polyfed.run("quickstart", data=data, out=tmp_path / "lines", progress=True, **SETTINGS)
    assert "fedproto round 1/2" in capsys.readouterr().err
    with progress_observers(False, "fedproto") as observers:
        assert observers == []


def test_the_bar_of_a_notebook(finished: tuple[Result, Observer]) -> None:
    result, _ = finished
    bar = NotebookProgress("<b>fedproto")
    bar._run.rounds = 2
    bar.round_done(result.history[0])
    bar.note("client 1 & 2")
    page = bar.as_html()
    assert '<progress value="1" max="2">' in page and "&lt;b&gt;fedproto, round 1/2: personal" in page
    assert "client 1 &amp; 2" in page
