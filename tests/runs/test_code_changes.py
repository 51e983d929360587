"""A run belongs to the code that it was made with: edited code is never answered with an old result."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import polyfed
from polyfed.cli.app import main
from polyfed.config.code_digest import file_digests
from polyfed.core import method as methods
from polyfed.errors import InputError
from polyfed.runs.discovery import find_run_folders

METHOD = '''"""A method with a helper."""

from dataclasses import dataclass
from polyfed.core import Method, Needs, Sends, register, step
from helper import PASSES

@register("edited")
@dataclass(frozen=True)
class Edited(Method):
    """Clients train."""
    needs = Needs()
    sends = Sends()

    def round(self, server, cohort):
        cohort.call(self.train)

    @step()
    def train(self, client, msg):
        for _ in range(PASSES):  # passes
            client.fit()
'''
SETTINGS: dict[str, Any] = {
    "clients": 2,
    "rounds": 1,
    "method": "edited",
    "imports": ["mine.py"],
    "data": {"partition": {"scheme": "iid"}, "limit": 60},
    "evaluate": {"global": False},
}
OVERRIDES = [f"{key}={json.dumps(value)}" for key, value in SETTINGS.items()]
SERIAL = ["run", "quickstart", *OVERRIDES, "engine.name=serial", "--out", "r", "--quiet"]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A method's file and the module that it imports, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(METHOD)
    Path("helper.py").write_text("PASSES = 1\n")
    before = dict(methods._REGISTERED)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("helper", None)
    methods._REGISTERED.clear()
    methods._REGISTERED.update(before)


def state_of(folder: str) -> str:
    return str(json.loads(Path(folder, "result.json").read_text())["state_hash"])


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    return str(err)


@pytest.mark.parametrize("edited", ["mine.py", "helper.py"])
def test_an_edited_file_is_refused_until_force(edited: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SERIAL) == 0
    assert main(SERIAL) == 0
    assert "nothing to do" in capsys.readouterr().err
    text = Path(edited).read_text()
    Path(edited).write_text(text.replace("PASSES)", "PASSES + 1)").replace("PASSES = 1", "PASSES = 1 + 1"))
    sentence = refusal(SERIAL, capsys)
    assert f"the code of the run in r has changed: {Path(edited).resolve()} has changed" in sentence
    assert "use --force" in sentence and "r.old-1" in sentence
    old = state_of("r")
    assert main([*SERIAL, "--force"]) == 0
    assert state_of("r.old-1") == old != state_of("r")
    assert main(SERIAL) == 0  # the new code is now the code of the folder
    assert main([*SERIAL, "--force"]) == 0
    assert state_of("r.old-2") == state_of("r")
    folders = {Path(path).name for path in find_run_folders(".")}
    assert folders == {"r"}


def test_comments_and_documentation_do_not_count() -> None:
    before = file_digests(["mine.py"])
    text = METHOD.replace("# passes", "# many passes").replace('"""Clients train."""', '"""Clients train twice."""')
    Path("mine.py").write_text(text)
    assert file_digests(["mine.py"]) == before
    assert sorted(Path(name).name for name in before) == ["helper.py", "mine.py"]
    Path("mine.py").write_text(METHOD.replace("client.fit()", "client.fit(epochs=2)"))
    assert file_digests(["mine.py"]) != before


def test_installed_packages_of_another_environment_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = Path("other", "lib", "python3", "site-packages").resolve()
    for folder, name in ((installed, "installed_elsewhere"), (Path("code").resolve(), "written_here")):
        folder.mkdir(parents=True)
        (folder / f"{name}.py").write_text("SIZE = 3\n")
        monkeypatch.syspath_prepend(folder)
    Path("mine.py").write_text(f"import installed_elsewhere\nimport written_here\n{METHOD}")
    assert sorted(Path(name).name for name in file_digests(["mine.py"])) == [
        "helper.py",
        "mine.py",
        "written_here.py",
    ]


def test_what_a_script_does_with_results_does_not_count() -> None:
    script = "import polyfed\nimport shop\nSIZE = 3\nresult = polyfed.run('quickstart', rounds=ROUNDS)\n"
    digests = []
    for text in (script, script.replace("import shop", "import json") + "print(json.dumps(result))\n"):
        Path("script.py").write_text(text.replace("ROUNDS", str(len(text))))
        digests.append(file_digests(["script.py"]))
    Path("script.py").write_text(script.replace("SIZE = 3", "SIZE = 4"))
    assert digests[0] == digests[1] != file_digests(["script.py"])


def test_code_between_two_runs_of_a_script_counts() -> None:
    script = "import polyfed\npolyfed.run()\nSIZE = 3\nif __name__ == '__main__':\n    polyfed.run()\n    print(1)\n"
    digests = []
    for text in (script, script.replace("print(1)", "print(2)"), script.replace("SIZE = 3", "SIZE = 4")):
        Path("script.py").write_text(text)
        digests.append(file_digests(["script.py"]))
    assert digests[0] == digests[1] != digests[2]


def test_a_broken_file_is_named_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SERIAL) == 0
    capsys.readouterr()
    Path("mine.py").write_text(METHOD + "def broken(:\n")
    line = len(METHOD.splitlines()) + 1
    for arguments in (SERIAL, [*SERIAL, "--force"]):
        assert f"{Path('mine.py').resolve()}, line {line} is not valid Python" in refusal(arguments, capsys)
    Path("mine.py").write_text(METHOD + "undefined\n")
    assert "mine.py has changed" in refusal(SERIAL, capsys)
    sentence = refusal([*SERIAL, "--force"], capsys)
    assert f"mine.py, line {line}: NameError: name 'undefined' is not defined" in sentence
    assert not Path("r.old-1").exists()  # nothing was moved for a run that cannot start
    Path("mine.py").write_text(METHOD)
    assert main(SERIAL) == 0
    assert "nothing to do" in capsys.readouterr().err


def test_an_unfinished_run_is_not_resumed_with_other_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SERIAL) == 0
    capsys.readouterr()
    Path("r", "result.json").unlink()
    Path("helper.py").write_text("PASSES = 1 + 1\n")
    for arguments in (["resume", "r"], SERIAL):
        sentence = refusal(arguments, capsys)
        assert "helper.py has changed" in sentence and "--force" in sentence
    with pytest.raises(InputError, match=r"helper\.py has changed"):
        polyfed.resume("r")


def test_another_version_of_polyfed_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(SERIAL) == 0
    before = json.loads(Path("r", "result.json").read_text())
    capsys.readouterr()
    monkeypatch.setattr(polyfed, "__version__", "99.1")
    assert f"polyfed is 99.1, was {before['versions']['polyfed']}" in refusal(SERIAL, capsys)
    assert main([*SERIAL, "--force"]) == 0
    after = json.loads(Path("r", "result.json").read_text())
    assert after["state_hash"] == before["state_hash"] and after["config_hash"] != before["config_hash"]


def test_a_run_of_an_earlier_release_without_digests_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SERIAL) == 0
    config = yaml.safe_load(Path("r", "config.yaml").read_text())
    del config["versions"]["code"]
    Path("r", "config.yaml").write_text(yaml.safe_dump(config))
    capsys.readouterr()
    assert main(SERIAL) == 0
    assert "nothing to do" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_the_same_process_runs_the_edited_code(engine: str) -> None:
    """As in a notebook: edit a file, run again. The class in the file may have another name."""
    run = {**SETTINGS, "engine": {"name": engine}}
    first = polyfed.run("quickstart", **run, out="first")
    Path("helper.py").write_text("PASSES = 1 + 1\n")
    second = polyfed.run("quickstart", **run, out="second")
    Path("mine.py").write_text(METHOD.replace("class Edited", "class Renamed").replace("PASSES)", "PASSES + 1)"))
    third = polyfed.run("quickstart", **run, out="third")
    hashes = [result["state_hash"] for result in (first, second, third)]
    assert len(set(hashes)) == 3
    Path("mine.py").write_text(METHOD)
    Path("helper.py").write_text("PASSES = 1\n")
    again = polyfed.run("quickstart", **run, out="second", force=True)
    assert again["state_hash"] == first["state_hash"] and state_of("second.old-1") == hashes[1]
    assert again["config_hash"] == first["config_hash"]  # what earlier runs registered does not count


def test_a_session_may_change_its_folder_between_runs_on_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths are relative to the folder of the session, whatever folder the fork server was started in."""
    run = {**SETTINGS, "engine": {"name": "pool", "workers": 1}}
    first = polyfed.run("quickstart", **run, out="run")
    other = tmp_path / "other"
    other.mkdir()
    for name in ("mine.py", "helper.py"):
        shutil.copy(name, other)
    monkeypatch.chdir(other)
    second = polyfed.run("quickstart", **run, out="run")
    assert second["state_hash"] == first["state_hash"]
    assert Path("run", "result.json").exists() and not list(other.glob("run/run*"))


def test_a_module_of_the_session_that_has_changed_must_be_reloaded() -> None:
    import importlib

    shutil.copy("mine.py", "session_module.py")
    module = importlib.import_module("session_module")
    run = {**SETTINGS, "imports": [], "engine": {"name": "serial"}, "method": module.Edited}
    first = polyfed.run("quickstart", **run, out="first")
    Path("session_module.py").write_text(METHOD.replace("PASSES)", "PASSES + 1)"))
    with pytest.raises(InputError, match=r"session_module\.py has changed .* reload session_module with importlib"):
        polyfed.run("quickstart", **run, out="second")
    module = importlib.reload(module)
    second = polyfed.run("quickstart", **{**run, "method": module.Edited}, out="second")
    assert second["state_hash"] != first["state_hash"]


def test_a_sweep_runs_again_what_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.yaml").write_text(yaml.safe_dump({**SETTINGS, "engine": {"name": "serial"}}))
    sweep = ["sweep", "c.yaml", "--out", "s", "--jobs", "1", "--quiet"]
    assert main(sweep) == 0
    capsys.readouterr()
    old = state_of("s/edited-s0")
    Path("helper.py").write_text("PASSES = 1 + 1\n")
    assert "helper.py has changed" in refusal(sweep, capsys)
    assert main([*sweep, "--force"]) == 0
    assert state_of("s/edited-s0.old-1") == old != state_of("s/edited-s0")
    assert "old-1" not in capsys.readouterr().out
