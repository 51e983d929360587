"""Sites and a coordinator that are killed and restarted, with the sites' own data and models: real processes."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import yaml
from scripts.reliability.processes import SUPERLINK, SUPERNODE, children, kill
from tests.deploy.direct_link import OWN_SETTING, DirectLink, make_sites, own_data, run_over
from tests.deploy.polyfed_processes import (
    Process,
    make_consortium,
    rounds_done,
    saved_round,
    start,
    stopping_all,
    wait_until,
)

from polyfed.deploy.processes import free_port
from polyfed.deploy.site_setup import own_data_setup

SETTING: dict[str, Any] = {
    **OWN_SETTING,
    "name": "recovery",
    "evaluate": {"personal": False, "global": False},
    "checkpoint": {"seconds": 0.0},
    "engine": {"timeout": 100.0},
    "failures": {"min_replies": 1},
}
# A round takes a second until the file `fast` exists, so that few rounds pass between two kills.
MODEL = """
import time
from pathlib import Path
from torch import nn

FAST = Path(__file__).with_name("fast")

class Flatten(nn.Flatten):
    def forward(self, x):
        if self.training and not FAST.exists():
            time.sleep(0.5)
        return super().forward(x)

def build(shape, classes):
    inputs = shape[0] * shape[1] * shape[2]
    return nn.Sequential(Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, classes))
"""


KILLS = 5  # of each


def test_killed_processes_recover_without_loss(tmp_path: Path) -> None:
    """The SuperLink is killed, then the coordinator, a site and the SuperNode of another at once, again and again.

    The first time the site is killed in a call, and two sites swap their ports.
    """
    setting = {**SETTING, "rounds": 4 * KILLS + 6}  # enough that the run has not finished at the last kill
    consortium = make_consortium(tmp_path, "ana", "ben", "cleo")
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(setting))
    models = {"ana": str(tmp_path / "model.py"), "ben": "tiny-cnn", "cleo": "tiny-mlp"}
    data = {name: own_data(tmp_path / f"data-{name}", k) for k, name in enumerate(models)}
    run, port, moments = tmp_path / "run", free_port(), random.Random(0)
    local_ports = {"ana": free_port(), "ben": free_port(), "cleo": free_port()}

    def start_site(name: str) -> None:
        options = ("--data", str(data[name]), "--model", models[name], "--port", str(local_ports[name]))
        running[name] = consortium.site(name, port, *options)

    def start_coordinator() -> None:
        options = ("--home", str(consortium.home), "--host", "127.0.0.1", "--port", str(port))
        config = str(tmp_path / "config.yaml")
        running["coordinator"] = start(tmp_path / "serve.log", "serve", config, "--out", str(run), *options)

    def output() -> str:
        return running["coordinator"].output()

    def has_call(name: str) -> bool:
        text = (consortium.folder / name / "supernode.log").read_text()
        return text.count("Receiving:") > text.count("Sending:")

    def wait_for_round(event: str) -> None:
        before = rounds_done(run)
        wait_until(lambda: rounds_done(run) > before, event, output)

    def kill_ben_in_a_call() -> int:
        """Return the round of the call."""
        running["ben"].popen.send_signal(signal.SIGSTOP)
        time.sleep(1)  # a reply that was ready has been sent by now
        wait_until(lambda: has_call("ben"), "the next call of ben", output)
        killed_in = rounds_done(run) + 1
        running["ben"].stop(signal.SIGKILL)
        wait_until(lambda: saved_round(run) >= killed_in, "a round without ben", output)
        return killed_in

    running: dict[str, Process] = {}
    with stopping_all(running):
        start_coordinator()
        wait_until(lambda: "listening on" in output(), "the coordinator's start", output)
        for name in models:
            start_site(name)
        wait_for_round("the first round")
        for again in range(KILLS):
            time.sleep(moments.uniform(0, 2))
            kill(*children(running["coordinator"].popen.pid, SUPERLINK))
            wait_for_round("a round with another SuperLink")
            assert output().count("the SuperLink ended with code -9; starting it again") == again + 1
            if again == 0:
                killed_in = kill_ben_in_a_call()
                running["ana"].stop()
                local_ports["ana"], local_ports["ben"] = local_ports["ben"], local_ports["ana"]
                start_site("ana")
            time.sleep(moments.uniform(0, 2))
            running["coordinator"].stop(signal.SIGKILL)
            running["ben"].stop(signal.SIGKILL)
            kill(*children(running["cleo"].popen.pid, SUPERNODE))
            start_coordinator()
            start_site("ben")
            wait_for_round("a round with another coordinator")
        (tmp_path / "fast").touch()
        wait_until(lambda: running["coordinator"].popen.poll() is not None, "the end of the run", output)
    for name in models:  # a killed site or SuperNode is not refused until its heartbeats have expired
        assert "still lists this site as online" not in running[name].output()
    coordinator = running["coordinator"]
    assert coordinator.popen.returncode == 0, coordinator.output()
    assert coordinator.output().count("resuming from its last checkpoint") == KILLS
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
        WithAbsentSites(make_sites(tmp_path / "direct", setups).sites), setting, tmp_path / "expected"
    )
    assert result["state_hash"] == expected["state_hash"]
    assert result["bytes"]["up_by_round"] == expected["bytes"]["up_by_round"]
