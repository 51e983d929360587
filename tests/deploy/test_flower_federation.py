"""A real federation on loopback: SuperLink, gateway and SuperNodes with TLS and keys, and sites as processes."""

from __future__ import annotations

import logging
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.direct_link import METHODS
from tests.deploy.polyfed_processes import Consortium, make_consortium, stopping, wait_until
from tests.methods.test_secure_sums import DropOuts
from tests.tiers import always_if

from polyfed import api
from polyfed.cli.app import main
from polyfed.config import parse
from polyfed.deploy.coordinator import Coordinator
from polyfed.deploy.processes import require_flower
from polyfed.deploy.site_traffic import SILENT_SECONDS
from polyfed.errors import InputError
from polyfed.federation.simulation import build_federation
from polyfed.runs.folder import RunFolder
from polyfed.testing.rounds import run_on_serial

QUICK: dict[str, Any] = {
    "clients": 2,
    "names": ["ana", "ben"],
    "rounds": 1,
    "data": {"limit": 80},
    "evaluate": {"personal": False, "global": False},
    "engine": {"timeout": 120.0},
}


ALWAYS = ("fedproto", "scaffold", "dffke")  # class tables, state that steps share, messages between clients


@dataclass
class Federation:
    coordinator: Coordinator
    consortium: Consortium

    def run(self, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
        return self.coordinator.run(parse(settings), RunFolder(folder))


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """One coordinator and two sites for all tests. Ben damages payloads in runs called `damaged` and `masked`."""
    require_flower()
    consortium = make_consortium(tmp_path_factory.mktemp("federation"), "ana", "ben", "cleo", "dora")
    with Coordinator(consortium.home, logging.getLogger("polyfed").warning) as coordinator:
        port = coordinator.gateway.port
        program = (str(Path(__file__).with_name("damaging_site.py")),)
        ana = consortium.site("ana", port, "--rehearsal")
        ben = consortium.site("ben", port, "--rehearsal", program=program)
        with stopping(ana, ben):
            yield Federation(coordinator, consortium)


def test_a_second_coordinator_is_refused(federation: Federation) -> None:
    home = federation.coordinator.home
    second = Coordinator(home, logging.getLogger("polyfed").warning)
    with pytest.raises(InputError, match="another coordinator uses"):
        second.__enter__()


def test_a_second_site_with_the_same_state_is_refused(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise it would replace the secret with which the first one takes its tasks."""
    consortium, server = federation.consortium, f"127.0.0.1:{federation.coordinator.gateway.port}"
    credentials = ("--key", str(consortium.folder / "ana.key"), "--ca", str(consortium.home / "ca.crt"))
    state = consortium.folder / "ana"
    wait_until((state / "task-secret").exists, "the start of the site")
    secret = (state / "task-secret").read_bytes()
    assert main(["join", "--server", server, *credentials, "--rehearsal", "--state", str(state)]) == 2
    assert f"another site uses {state}; stop it" in " ".join(capsys.readouterr().err.split())
    assert (state / "task-secret").read_bytes() == secret


@pytest.mark.parametrize("method", [pytest.param(name, marks=always_if(name in ALWAYS)) for name in METHODS])
def test_flower_is_bit_identical_to_serial(method: str, federation: Federation, tmp_path: Path) -> None:
    settings = {**QUICK, **METHODS[method]}
    serial = api.run({**settings, "engine": {"name": "serial"}}, out=tmp_path / "serial")
    flower = federation.run(settings, tmp_path / "flower")
    assert flower["state_hash"] == serial["state_hash"]
    assert flower["bytes"] == serial["bytes"]
    assert flower["failures"] == []
    assert stat.S_IMODE((tmp_path / "flower").stat().st_mode) == 0o700  # it holds what sites uploaded


def test_a_site_that_sends_damaged_payloads_is_left_out_and_named(federation: Federation, tmp_path: Path) -> None:
    result = federation.run(
        {**QUICK, "name": "damaged", "method": {"name": "fedproto"}, "failures": {"min_replies": 1}}, tmp_path / "run"
    )
    assert [(failure["client"], failure["kind"]) for failure in result["failures"]] == [("ben", "rejected")]
    assert "damaged" in result["failures"][0]["message"]


def test_a_site_that_computes_for_long_is_not_taken_as_lost(federation: Federation, tmp_path: Path) -> None:
    result = federation.run({**QUICK, "name": "slow", "method": {"name": "fedproto"}}, tmp_path / "run")
    assert result["seconds"]["total"] > SILENT_SECONDS
    assert result["failures"] == []


def test_secure_sums_with_a_drop_out_equal_those_of_the_serial_engine(federation: Federation, tmp_path: Path) -> None:
    """Four sites; ben's masked reply of the first round does not arrive. The others recover its pairwise masks."""
    settings = {
        **QUICK,
        "name": "masked",
        "clients": 4,
        "names": ["ana", "ben", "cleo", "dora"],
        "rounds": 2,
        "method": {"name": "lg-fedavg"},
        "aggregation": {"name": "mean", "secure": True},
        "failures": {"min_replies": 3},
    }
    consortium, port = federation.consortium, federation.coordinator.gateway.port
    with stopping(*(consortium.site(name, port, "--rehearsal") for name in ("cleo", "dora"))):
        result = federation.run(settings, tmp_path / "run")
    assert [(f["round"], f["client"], f["steps"]) for f in result["failures"]] == [(1, "ben", ["masked_train"])]
    simulated = build_federation(parse(settings))
    dropping = DropOuts({"masked_train": ("ben",)}, rounds=(1,))
    serial = run_on_serial(simulated, simulated.check(simulated.profiles()), wrap=dropping)
    assert result["state_hash"] == serial.hash


def test_counted_bytes_match_the_traffic_of_the_gateway(federation: Federation, tmp_path: Path) -> None:
    """About 45 MB in each direction, counted by the run and by the gateway."""
    before = federation.coordinator.gateway.counts
    up, down = before.from_sites, before.to_sites
    settings = {
        **QUICK,
        "clients": 1,
        "names": ["ana"],
        "method": {"name": "fedavg"},
        "models": {"group": ["resnet18"]},
    }
    settings |= {"data": {"limit": 20}, "train": {"batch_size": 10}}
    result = federation.run(settings, tmp_path / "run")
    assert result["failures"] == []
    assert result["bytes"]["up"] > 40_000_000
    after = federation.coordinator.gateway.counts
    assert after.from_sites - up == pytest.approx(result["bytes"]["up"], rel=0.02)
    assert after.to_sites - down == pytest.approx(result["bytes"]["down"], rel=0.02)


def test_inspect_shows_the_uploads_of_a_site(
    federation: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation.run({**QUICK, "name": "inspected", "method": {"name": "fedproto"}}, tmp_path / "run")
    assert main(["inspect", str(federation.consortium.folder / "ana")]) == 0
    output = capsys.readouterr().out
    assert "uploads of this site in its newest run" in output
    assert "every message that this site sent" in output
