"""Sites and a coordinator that are killed and come back, with data and models of their own: real processes."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import yaml
from tests.deploy.direct import OWN_MODEL, OWN_SETTING, DirectLink, own_data, run_over, sites
from tests.deploy.running import Process, consortium, ending, rounds_done, start, until

from polyfed.deploy.processes import free_port
from polyfed.deploy.site_process import own

SETTING: dict[str, Any] = {
    **OWN_SETTING,
    "name": "survives",
    "rounds": 4,
    "evaluate": {"personal": False, "global": False},
    "checkpoint": {"seconds": 0.0},
    "engine": {"timeout": 100.0},
}


def test_who_is_killed_comes_back_and_nothing_is_lost_or_counted_twice(tmp_path: Path) -> None:
    """A site is killed in a round, then the coordinator; two sites swap their ports; the run ends as it should."""
    members = consortium(tmp_path, "ana", "ben", "cleo")
    (tmp_path / "model.py").write_text(OWN_MODEL)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(SETTING))
    models = {"ana": str(tmp_path / "model.py"), "ben": "tiny-cnn", "cleo": "tiny-mlp"}
    data = {name: own_data(tmp_path / f"data-{name}", k) for k, name in enumerate(models)}
    run, port = tmp_path / "run", free_port()
    local = {"ana": free_port(), "ben": free_port(), "cleo": free_port()}

    def site(name: str, at: int) -> Process:
        brings = ("--data", str(data[name]), "--model", models[name])
        return members.site(name, port, *brings, "--port", str(at))

    def coordinator() -> Process:
        where = ("--home", str(members.home), "--host", "127.0.0.1", "--port", str(port))
        return start(tmp_path / "serve.log", "serve", str(tmp_path / "config.yaml"), "--out", str(run), *where)

    def received(name: str) -> int:
        return (members.folder / name / "supernode.log").read_text().count("Receiving:")

    serving = coordinator()
    with ending(serving):
        until(lambda: "listening on" in serving.said(), "the coordinator's start", serving.said)
        ana, ben, cleo = (site(name, local[name]) for name in models)
        with ending(ana, ben, cleo):
            until(lambda: rounds_done(run) >= 1, "the first round", serving.said)
            ben.popen.send_signal(signal.SIGSTOP)  # so that it is in the middle of a call when it is killed
            before = received("ben")
            until(lambda: received("ben") > before, "the next call of ben", serving.said)
            killed_in = rounds_done(run) + 1
            ben.end(signal.SIGKILL)
            until(lambda: rounds_done(run) >= killed_in, "a round without ben", serving.said)
            serving.end(signal.SIGKILL)
            ana.end()
            serving = coordinator()
            ana, ben = site("ana", local["ben"]), site("ben", local["ana"])
            with ending(serving, ana, ben):
                until(lambda: serving.popen.poll() is not None, "the end of the run", serving.said)
    assert serving.popen.returncode == 0, serving.said()
    assert "going on from its last checkpoint" in serving.said()
    result = json.loads((run / "result.json").read_text())
    assert [(f["round"], f["client"], f["kind"]) for f in result["failures"]] == [(killed_in, "ben", "unavailable")]

    class WithoutBen(DirectLink):
        """The same run without a network, in which ben is away in one round."""

        calls = 0

        def online(self) -> frozenset[str]:
            self.calls += 1
            return super().online() - ({"ben"} if self.calls == killed_in else set())

    for name in models:  # a site's digests of its states are keyed with its secret
        (tmp_path / "direct" / name).mkdir(parents=True)
        shutil.copy(members.folder / name / "privacy.secret", tmp_path / "direct" / name)
    brings = {name: own(name, data[name], model, tmp_path / "direct" / name) for name, model in models.items()}
    expected = run_over(WithoutBen(sites(tmp_path / "direct", brings).sites), SETTING, tmp_path / "expected")
    assert result["state_hash"] == expected["state_hash"]
    assert result["bytes"]["up_by_round"] == expected["bytes"]["up_by_round"]
