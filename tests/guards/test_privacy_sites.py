"""Protected fields over the messages of real sites: the same guard, with noise that only the site can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.deploy.direct import OWN_MODEL, OWN_SETTING, SETTING, own_data, run_over, sites

from polyfed import api
from polyfed.cli.app import main
from polyfed.core.codec import decode
from polyfed.deploy.node import own, rehearsal
from polyfed.runs.folder import RunFolder

ASKED: dict[str, Any] = {"prototypes": {"clip": 1.0, "epsilon": 8.0, "delta": 1e-5}}


def test_sites_in_rehearsal_send_what_the_serial_engine_sends(tmp_path: Path) -> None:
    setting = {**SETTING, "privacy": ASKED, "evaluate": {"every": 10, "record_uploads": ["ben"]}}
    link = sites(tmp_path, {name: rehearsal(name) for name in ("ana", "ben")})
    over = run_over(link, setting, tmp_path / "over")
    alone = api.run(setting, out=tmp_path / "alone")
    assert over["state_hash"] == alone["state_hash"] and over["privacy"] == alone["privacy"]
    assert over["privacy"]["clients"]["ana"]["epsilon"] == pytest.approx(8.0, abs=1e-6)
    frames = [[path.read_bytes() for path in RunFolder(tmp_path / n).uploads("ben")] for n in ("over", "alone")]
    assert frames[0] == frames[1] and len(frames[0]) == 2


def test_a_site_of_its_own_has_noise_that_the_seed_does_not_tell(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(OWN_MODEL)
    model = str(tmp_path / "model.py")
    data = {name: own_data(tmp_path / "data" / name, k) for k, name in enumerate(("ana", "ben", "cleo"))}
    setting = {**OWN_SETTING, "privacy": ASKED, "rounds": 1}
    setting["evaluate"] = {**OWN_SETTING["evaluate"], "record_uploads": ["ana"]}
    left = []
    for turn in ("first", "second"):
        link = sites(tmp_path / turn, {name: own(name, path, model) for name, path in data.items()})
        run_over(link, setting, tmp_path / turn / "over")
        (path,) = RunFolder(tmp_path / turn / "over").uploads("ana")
        left.append(decode(path.read_bytes()).table("prototypes").values)
    assert left[0].shape == left[1].shape and not bool((left[0] == left[1]).any())


def test_check_says_what_will_be_protected(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "privacy={prototypes: {clip: 1.0, epsilon: 1.0, delta: 1e-5}}"
    assert main(["check", "quickstart", "rounds=3", asked]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "prototypes, every row: noise of deviation" in shown and "for 3 releases by a client at most" in shown
    assert "guarantee for one sample replaced by another of its class" in shown
    assert main(["check", "quickstart", "privacy={prototype: {clip: 1.0, epsilon: 1.0}}"]) == 2
    assert "did you mean 'prototypes'" in capsys.readouterr().err
