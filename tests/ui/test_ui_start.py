"""Requests to start runs from the page: what is rejected, and where starting is disabled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.ui.conftest import serving
from tests.ui.test_ui_guard import ask, token_of

from polyfed.cli.app import main
from polyfed.errors import InputError, RunError
from polyfed.runs.folder import RunFolder
from polyfed.ui.run_launcher import RunLauncher
from polyfed.ui.server import NOT_FROM_OTHER_MACHINES, READ_ONLY, SINGLE_RUN
from polyfed.ui.start_request import MAX_LENGTH, MAX_OVERRIDES, StartRequest

ALIASES = "names=[&a [x,x,x,x,x,x,x,x], " + "".join(
    f"&{new} [{','.join([f'*{old}'] * 8)}], " for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)


def request(overrides: str = "", name: str = "", preset: str = "quickstart") -> StartRequest:
    return StartRequest.from_json({"preset": preset, "overrides": overrides, "name": name})


def test_overrides_are_lines() -> None:
    wanted = request("# a comment\n\n rounds = 3 \nmethod=fedavg", "trial")
    assert wanted.overrides == ("rounds=3", "method=fedavg", 'name="trial"')
    config = wanted.config(Path("/nowhere"))
    assert (config.rounds, config.method["name"], config.run_name) == (3, "fedavg", "trial")
    assert wanted.arguments()[0] == "--" and wanted.arguments()[2:] == list(wanted.overrides)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("imports=[os]", "cannot import code"),
        ("imports=[evil.py]", "cannot import code"),
        ("track=['os:system']", "cannot import 'os:system'"),
        ("method={name: fedktl-lite, generator: trained, source: evil}", "cannot import code"),
        ("method.source=evil", "cannot import code"),
        ("method.checkpoint=/etc/passwd", "is outside of the folder of this page"),
        ("data.root=/etc", "is outside of the folder of this page"),
        ("data.root=~/data", "is outside of the folder of this page"),
        ("data.partition={scheme: file, path: ../other.npz}", "is outside of the folder of this page"),
        ("models.start={'0': model}", "is outside of the folder of this page"),
        ("models.start=model", "is outside of the folder of this page"),
        ("models.group=[{name: ../model}]", "is outside of the folder of this page"),
        ("engine.address=ray://elsewhere:10001", "cannot use a cluster"),
        ("--out=/tmp/elsewhere", "not of the form key=value"),
        ("rounds", "not of the form key=value"),
        ("=3", "not of the form key=value"),
        ("name=../elsewhere", "cannot be empty or contain '/'"),
        ("name=.hidden", "the name '.hidden' is not allowed"),
        ("name=x.old-1", "the name 'x.old-1' is not allowed"),
        ("name='-x'", "the name '-x' is not allowed"),
        ("rounds=0", "quickstart: rounds"),
        ("method=fedprotto", "did you mean 'fedproto'?"),
        (ALIASES + "*j]", "is not YAML"),
        ("names=" + "[" * 900, "is not YAML"),
        ("names=" + "x" * MAX_LENGTH, f"{MAX_LENGTH} characters at most"),
        ("\n".join(["rounds=3"] * (MAX_OVERRIDES + 1)), f"at most {MAX_OVERRIDES} are allowed"),
    ],
)
def test_requests_that_are_rejected(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        request(override).config(tmp_path)
    assert words in str(caught.value)


def test_presets_are_names(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("method: local")
    for preset in (str(tmp_path / "own.yaml"), "../presets/quickstart", "quickstart.yaml", ""):
        with pytest.raises(InputError, match="there is no preset called"):
            request(preset=preset).config(tmp_path)
    for wrong in ({"preset": 3}, {"preset": "quickstart", "overrides": ["rounds=3"]}):
        with pytest.raises(InputError, match="must be texts"):
            StartRequest.from_json(wrong)
    listed = {one["name"]: one["description"] for one in RunLauncher(tmp_path).presets()}
    assert "8x8 digits" in listed["quickstart"] and all(listed.values())


def test_paths_inside_the_folder_are_allowed(tmp_path: Path) -> None:
    inside = str(tmp_path / "data")
    assert request(f"data.root={inside}").config(tmp_path).data.root == inside
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(InputError, match="is outside of the folder"):
        request(f"data.root={tmp_path / 'link'}").config(tmp_path)


def test_existing_runs_are_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("old", "link"):
        with pytest.raises(InputError, match=f"there is a run called '{name}' already"):
            RunLauncher(tmp_path).start(request(name=name))


def test_number_of_started_runs_is_limited(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="at most 0 may run at the same time"):
        RunLauncher(tmp_path, limit=0).start(request())
    with pytest.raises(InputError, match="no run called 'x' was started"):
        RunLauncher(tmp_path).state("x")
    assert list(tmp_path.iterdir()) == []


def test_starting_needs_the_token(tmp_path: Path) -> None:
    body = json.dumps({"preset": "quickstart", "overrides": "rounds=0"})
    with serving(tmp_path) as page:
        token = token_of(page.address)
        for path in ("/api/check", "/api/start"):
            assert ask(page.address, path, "POST", body)[0] == 403
            assert (
                ask(page.address, path, "POST", body, X_Polyfed_Token=token, Origin="https://evil.example")[0] == 403
            )
            assert ask(page.address, path, "POST", body, X_Polyfed_Token=token, Host="evil.example")[0] == 403
            assert ask(page.address, path, X_Polyfed_Token=token)[0] == 405
        status, text, _ = ask(page.address, "/api/check", "POST", body, X_Polyfed_Token=token)
        assert status == 200 and "rounds" in json.loads(text)["error"]  # the check ran; it found a mistake
        status, text, _ = ask(page.address, "/api/start", "POST", body, X_Polyfed_Token=token)
        assert status == 404 and "rounds" in json.loads(text)["error"]
    assert list(tmp_path.iterdir()) == []


def rejected(address: str) -> str:
    """Return why a dashboard does not start runs, although the request has the token."""
    token = token_of(address)
    status, text, _ = ask(address, "/api/start", "POST", '{"preset": "quickstart"}', X_Polyfed_Token=token)
    assert status == 409
    shown = ask(address, "/", X_Polyfed_Token=token)[1]
    error = str(json.loads(text)["error"])
    assert error in shown and token in shown  # runs can still be stopped
    return error


def test_dashboards_that_do_not_start_runs(tmp_path: Path) -> None:
    with serving(tmp_path, read_only=True) as page:
        assert "token" not in page.address
        for path in ("/api/start", "/api/check", "/api/stop"):
            status, text, _ = ask(page.address, path, "POST", "{}", X_Polyfed_Token="x")
            assert (status, text) == (403, "this dashboard is read-only")
        assert READ_ONLY in ask(page.address, "/")[1]
    with serving(tmp_path, "0.0.0.0") as page:
        assert rejected(page.address) == NOT_FROM_OTHER_MACHINES
    with serving(tmp_path, "0.0.0.0", allow_start=True) as page:
        assert ask(page.address, "/api/presets")[0] == 401
        assert ask(page.address, "/api/presets", X_Polyfed_Token=token_of(page.address))[0] == 200
    RunFolder(tmp_path / "run").create({"name": "run", "method": {"name": "local"}, "rounds": 3})
    with serving(tmp_path / "run") as page:
        assert rejected(page.address) == SINGLE_RUN


def test_options_that_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", str(tmp_path), "--read-only", "--allow-start"]) == 2
    assert "exclude each other" in capsys.readouterr().err
