"""Protected fields of real sites: the same guard, with secret noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deploy.direct_link import OWN_MODEL, OWN_SETTING, SETTING, make_sites, own_data, run_over

from polyfed import api
from polyfed.cli.app import main
from polyfed.config import parse
from polyfed.core import ClassTable
from polyfed.core.client_host import Host
from polyfed.core.codec import decode, encode
from polyfed.core.engine import Call, Task
from polyfed.core.frame_digest import START
from polyfed.deploy.reply_cache import to_bytes
from polyfed.deploy.site_federation import load_site
from polyfed.deploy.site_setup import own_data_setup, rehearsal_setup
from polyfed.engines.flower import SiteMessage
from polyfed.guards.privacy import PrivacyGuard
from polyfed.runs.folder import RunFolder
from polyfed.runs.state_store import FolderStore

ASKED: dict[str, Any] = {"prototypes": {"clip": 1.0, "epsilon": 8.0, "delta": 1e-5}}


def test_rehearsing_sites_send_the_bytes_of_the_serial_engine(tmp_path: Path) -> None:
    setting = {**SETTING, "privacy": ASKED, "evaluate": {"every": 10, "record_uploads": ["ben"]}}
    link = make_sites(tmp_path, {name: rehearsal_setup(name) for name in ("ana", "ben")})
    over = run_over(link, setting, tmp_path / "over")
    alone = api.run(setting, out=tmp_path / "alone")
    assert over["state_hash"] == alone["state_hash"] and over["privacy"] == alone["privacy"]
    assert over["privacy"]["clients"]["ana"]["epsilon"] == pytest.approx(8.0, abs=1e-6)
    uploads = [RunFolder(tmp_path / name).uploads("ben") for name in ("over", "alone")]
    frames = [[path.read_bytes()[START:] for path in paths] for paths in uploads]  # sites have another digest
    assert frames[0] == frames[1] and len(frames[0]) == 2


def test_noise_of_a_site_does_not_follow_from_the_seed(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(OWN_MODEL)
    model = str(tmp_path / "model.py")
    data = {name: own_data(tmp_path / "data" / name, k) for k, name in enumerate(("ana", "ben", "cleo"))}
    setting = {**OWN_SETTING, "privacy": ASKED, "rounds": 1}
    setting["evaluate"] = {**OWN_SETTING["evaluate"], "record_uploads": ["ana"]}
    left = []
    for turn in ("first", "second"):
        where = tmp_path / turn
        link = make_sites(
            where, {name: own_data_setup(name, path, model, where / name) for name, path in data.items()}
        )
        run_over(link, setting, tmp_path / turn / "over")
        (path,) = RunFolder(tmp_path / turn / "over").uploads("ana")
        left.append(decode(path.read_bytes()).table("prototypes").values)
    assert left[0].shape == left[1].shape and not bool((left[0] == left[1]).any())


EPSILON: dict[str, Any] = {**OWN_SETTING, "privacy": ASKED}  # of two releases, one a round


def own_host(folder: Path, secret: str = "s" * 64, **changed: Any) -> Host:
    """Return a host of the site ana with a persistent state folder."""
    (folder / "model.py").write_text(OWN_MODEL)
    config = parse({**EPSILON, **changed})
    made = load_site(config, "ana", own_data(folder / "data", 0), str(folder / "model.py"), cache=folder / "cache")
    made.secret = secret
    return Host(made, FolderStore(folder / "states"), 1 << 30, 1 << 30)


def shared(value: float = 0.0) -> bytes:
    return encode({"prototypes": ClassTable.of({1: torch.full((64,), value)}, 64).without_counts()}).data


def asked(number: int) -> Call:
    return Call(number, number, ("train",), ("train",))


def test_a_site_counts_releases_independently_of_the_requested_state(tmp_path: Path) -> None:
    """The coordinator names the base. Two releases are allowed, so a third is refused, also after a restart."""
    host, again = own_host(tmp_path), Task("ana", 0)
    first, second = host.handle(asked(1), again, shared()), host.handle(asked(2), again, shared())
    assert first.failure is None and second.failure is None and first.frame != second.frame
    for one in (host, own_host(tmp_path)):
        refused = one.handle(asked(3), again, shared())
        assert refused.failure is not None and "more often than its noise allows (2 times)" in str(refused)
        repeated = one.handle(asked(2), again, shared())  # the same once more tells nothing new
        assert repeated.failure is None and repeated.frame == second.frame


def test_runs_of_a_site_have_different_noise(tmp_path: Path) -> None:
    """If two standard deviations had the same noise, the value would be (s2 a - s1 b) / (s2 - s1)."""
    found = []
    for name, epsilon in (("a", 8.0), ("b", 4.0)):
        (tmp_path / name).mkdir()
        privacy = {"prototypes": {"clip": 1.0, "epsilon": epsilon}}
        host = own_host(tmp_path / name, privacy=privacy)
        guard = host._maker.guard
        assert isinstance(guard, PrivacyGuard) and guard.protections[0].sigma is not None
        left = decode(host.handle(asked(1), Task("ana", 0), shared()).frame).table("prototypes").values.double()
        found.append((left, guard.protections[0].sigma))
    (a, s1), (b, s2) = found
    guess = (s2 * a - s1 * b) / (s2 - s1)
    assert s1 < s2 and float(guess.norm(dim=1).max()) > 2.0  # clipped rows have at most norm 1


def test_state_digests_are_keyed_by_the_site(tmp_path: Path) -> None:
    told = []
    for secret in ("", "s" * 64, "t" * 64):
        (tmp_path / f"of-{secret[:1]}").mkdir()
        host = own_host(tmp_path / f"of-{secret[:1]}", secret, privacy=None)
        told.append(host.handle(asked(1), Task("ana", 0), shared()).digest)
        plain = (tmp_path / f"of-{secret[:1]}" / "states" / "ana.1").read_bytes()[4:36].hex()
        assert (told[-1] == plain) == (secret == "")
    assert len(set(told)) == 3


@pytest.mark.parametrize("privacy", [ASKED, None])
def test_messages_of_a_site_do_not_contain_clean_rows(tmp_path: Path, privacy: dict[str, Any] | None) -> None:
    """Without privacy, messages contain clean rows. The plain state digest is never sent."""
    (tmp_path / "model.py").write_text(OWN_MODEL)
    data = {name: own_data(tmp_path / "data" / name, k) for k, name in enumerate(("ana", "ben", "cleo"))}
    setups = {
        n: own_data_setup(n, path, str(tmp_path / "model.py"), tmp_path / "sites" / n) for n, path in data.items()
    }
    link, left = make_sites(tmp_path / "sites", setups), []

    def record(message: SiteMessage) -> SiteMessage:
        left.append(to_bytes(message))
        return message

    link.modify = {"ana": record}
    setting = {**OWN_SETTING, "rounds": 1, "privacy": privacy}
    run_over(link, setting, tmp_path / "over")
    (state,) = (tmp_path / "sites" / "ana").glob("*/clients/ana.1")
    client = setups["ana"](parse(setting))[0].make_client("ana")
    client.load(decode(state.read_bytes()).weights("model"))
    rows = client.class_means(client.model.features, client.profile.features).values
    found = [row.numpy().tobytes() in message for row in rows for message in left]
    assert len(rows) == 3 and any(found) == (privacy is None)
    assert not any(state.read_bytes()[4:36].hex().encode() in message for message in left)


def test_check_shows_what_will_be_protected(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "privacy={prototypes: {clip: 1.0, epsilon: 1.0, delta: 1e-5}}"
    assert main(["check", "quickstart", "rounds=3", asked]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "prototypes, every row: noise with standard deviation" in shown
    assert "for at most 3 releases by a client" in shown
    assert "guarantee for one sample replaced by another of its class" in shown
    assert main(["check", "quickstart", "privacy={prototype: {clip: 1.0, epsilon: 1.0}}"]) == 2
    assert "did you mean 'prototypes'" in capsys.readouterr().err
