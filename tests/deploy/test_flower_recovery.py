"""Sites and a coordinator that are killed and restarted, with the sites' own data and models: real processes."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import yaml
from scripts.reliability.processes import SUPERLINK, SUPERNODE, children, kill
from tests.deploy.direct_link import OWN_MODEL, OWN_SETTING, DirectLink, make_sites, own_data, run_over
from tests.deploy.polyfed_processes import (
    Process,
    make_consortium,
    rounds_done,
    saved_round,
    start,
    stopping,
    wait_until,
)

from polyfed.deploy.processes import free_port
from polyfed.deploy.site_setup import own_data_setup

SETTING: dict[str, Any] = {
    **OWN_SETTING,
    "name": "recovery",
    "rounds": 6,
    "evaluate": {"personal": False, "global": False},
    "checkpoint": {"seconds": 0.0},
    "engine": {"timeout": 100.0},
    "failures": {"min_replies": 1},
}


def test_killed_processes_recover_without_loss(tmp_path: Path) -> None:
    """The SuperLink is killed, then a site in a round, then the coordinator and a SuperNode. Two sites swap ports."""
    consortium = make_consortium(tmp_path, "ana", "ben", "cleo")
    (tmp_path / "model.py").write_text(OWN_MODEL)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(SETTING))
    models = {"ana": str(tmp_path / "model.py"), "ben": "tiny-cnn", "cleo": "tiny-mlp"}
    data = {name: own_data(tmp_path / f"data-{name}", k) for k, name in enumerate(models)}
    run, port = tmp_path / "run", free_port()
    local_ports = {"ana": free_port(), "ben": free_port(), "cleo": free_port()}

    def site(name: str, local_port: int) -> Process:
        options = ("--data", str(data[name]), "--model", models[name])
        return consortium.site(name, port, *options, "--port", str(local_port))

    def start_coordinator() -> Process:
        options = ("--home", str(consortium.home), "--host", "127.0.0.1", "--port", str(port))
        return start(tmp_path / "serve.log", "serve", str(tmp_path / "config.yaml"), "--out", str(run), *options)

    def received_messages(name: str) -> int:
        return (consortium.folder / name / "supernode.log").read_text().count("Receiving:")

    coordinator = start_coordinator()
    with stopping(coordinator):
        wait_until(lambda: "listening on" in coordinator.output(), "the coordinator's start", coordinator.output)
        ana, ben, cleo = (site(name, local_ports[name]) for name in models)
        with stopping(ana, ben, cleo):
            wait_until(lambda: rounds_done(run) >= 1, "the first round", coordinator.output)
            kill(*children(coordinator.popen.pid, SUPERLINK))
            wait_until(lambda: rounds_done(run) >= 2, "a round with another SuperLink", coordinator.output)
            assert "the SuperLink ended with code -9; starting it again" in coordinator.output()
            ben.popen.send_signal(signal.SIGSTOP)  # so that it is killed during a call
            before = received_messages("ben")
            wait_until(lambda: received_messages("ben") > before, "the next call of ben", coordinator.output)
            killed_in = rounds_done(run) + 1
            ben.stop(signal.SIGKILL)
            wait_until(lambda: saved_round(run) >= killed_in, "a round without ben", coordinator.output)
            coordinator.stop(signal.SIGKILL)
            kill(*children(cleo.popen.pid, SUPERNODE))
            ana.stop()
            coordinator = start_coordinator()
            ana, ben = site("ana", local_ports["ben"]), site("ben", local_ports["ana"])
            with stopping(coordinator, ana, ben):
                wait_until(lambda: coordinator.popen.poll() is not None, "the end of the run", coordinator.output)
    assert coordinator.popen.returncode == 0, coordinator.output()
    assert "resuming from its last checkpoint" in coordinator.output()
    result = json.loads((run / "result.json").read_text())
    absent = {(failure["round"], failure["client"]) for failure in result["failures"]}
    assert (killed_in, "ben") in absent and {failure["kind"] for failure in result["failures"]} == {"unavailable"}

    class WithAbsentSites(DirectLink):
        """The same run without a network, in which the same sites are offline in the same rounds."""

        calls = 0

        def online(self) -> frozenset[str]:
            self.calls += 1
            return super().online() - {name for round, name in absent if round == self.calls}

    for name in models:  # a site's digests of its states depend on its secret
        (tmp_path / "direct" / name).mkdir(parents=True)
        shutil.copy(consortium.folder / name / "privacy.secret", tmp_path / "direct" / name)
    setups = {
        name: own_data_setup(name, data[name], model, tmp_path / "direct" / name) for name, model in models.items()
    }
    expected = run_over(
        WithAbsentSites(make_sites(tmp_path / "direct", setups).sites), SETTING, tmp_path / "expected"
    )
    assert result["state_hash"] == expected["state_hash"]
    assert result["bytes"]["up_by_round"] == expected["bytes"]["up_by_round"]
