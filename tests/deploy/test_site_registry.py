"""The registry of sites: one key for each name, and a revoked key stays revoked."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from polyfed.cli.app import main
from polyfed.cli.commands import app
from polyfed.deploy import keys, site_registry
from polyfed.deploy.certificates import certificate_hosts
from polyfed.deploy.site_registry import SiteRegistry
from polyfed.errors import InputError, StateError


@pytest.fixture(scope="module")
def public_keys(tmp_path_factory: pytest.TempPathFactory) -> list[keys.PublicKey]:
    folder = tmp_path_factory.mktemp("keys")
    return [keys.read_public_key(keys.create_site_key(folder, f"k{n}").public) for n in range(4)]


def test_status_from_unknown_to_revoked(tmp_path: Path, public_keys: list[keys.PublicKey]) -> None:
    registry = SiteRegistry(tmp_path)
    assert registry.sites() == {} and registry.status(public_keys[0].pem) == ("unknown", "")
    registry.admit("south", public_keys[0])
    registry.admit("north", public_keys[1])
    assert list(registry.sites()) == ["north", "south"]
    assert registry.status(public_keys[0].pem) == ("admitted", "south")
    registry.revoke("south")
    assert list(registry.sites()) == ["north"]
    assert registry.status(public_keys[0].pem) == ("revoked", "south")
    with pytest.raises(InputError, match=r"this key was revoked \(site 'south'\) and cannot be admitted again"):
        registry.admit("east", public_keys[0])
    registry.admit("south", public_keys[2])
    assert registry.status(public_keys[2].pem) == ("admitted", "south")
    assert registry.status(public_keys[0].pem) == ("revoked", "south")


def test_a_revoked_key_in_another_format_stays_revoked(tmp_path: Path) -> None:
    file = keys.create_site_key(tmp_path, "north").public
    registry = SiteRegistry(tmp_path)
    registry.admit("north", keys.read_public_key(file))
    registry.revoke("north")
    kind, text, *_ = file.read_text().split()
    for other in (f"{kind} {text}=", f"{kind}   {text} another comment", f"{kind} {text.rstrip('=')}===="):
        file.write_text(other)
        with pytest.raises(InputError):
            registry.admit("south", keys.read_public_key(file))
    # and if a hand-written file contains the key twice
    (entry,) = json.loads(registry.file.read_text())["sites"]
    registry.file.write_text(json.dumps({"sites": [entry, {**entry, "name": "south", "revoked": False}]}))
    key = keys.parse_public_key(entry["key"])
    assert registry.status(key.pem)[0] == "revoked" and registry.sites() == {}


def test_concurrent_changes_are_not_lost(tmp_path: Path) -> None:
    admitted = {f"s{n}": keys.read_public_key(keys.create_site_key(tmp_path, f"s{n}").public) for n in range(6)}
    registry = SiteRegistry(tmp_path)
    registry.admit("old", keys.read_public_key(keys.create_site_key(tmp_path, "old").public))
    changes = [threading.Thread(target=SiteRegistry(tmp_path).admit, args=item) for item in admitted.items()]
    changes.append(threading.Thread(target=SiteRegistry(tmp_path).revoke, args=("old",)))
    for change in changes:
        change.start()
    for change in changes:
        change.join()
    assert list(registry.sites()) == sorted(admitted)
    assert [entry.name for entry in registry.entries() if entry.revoked] == ["old"]


def test_names_and_keys_are_unique(tmp_path: Path, public_keys: list[keys.PublicKey]) -> None:
    registry = SiteRegistry(tmp_path)
    registry.admit("north", public_keys[0])
    before = registry.file.read_bytes()
    with pytest.raises(InputError, match="already admitted, as site 'north'"):
        registry.admit("south", public_keys[0])
    with pytest.raises(InputError, match="site 'north' exists with another key"):
        registry.admit("north", public_keys[1])
    with pytest.raises(InputError, match="no site 'nroth' is admitted; did you mean 'north'"):
        registry.revoke("nroth")
    with pytest.raises(InputError, match="cannot name a site"):
        registry.admit("North", public_keys[1])
    assert registry.file.read_bytes() == before


def test_changes_of_other_processes_are_seen(tmp_path: Path, public_keys: list[keys.PublicKey]) -> None:
    registry, other = SiteRegistry(tmp_path), SiteRegistry(tmp_path)
    other.admit("north", public_keys[0])
    assert registry.status(public_keys[0].pem) == ("admitted", "north")
    other.revoke("north")
    assert registry.status(public_keys[0].pem) == ("revoked", "north")


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"sites": [{"name": "a"}]}', '{"sites": [{"name": "a", "key": "x", "revoked": false}]}'],
)
def test_a_damaged_file_admits_no_site(tmp_path: Path, public_keys: list[keys.PublicKey], content: str) -> None:
    registry = SiteRegistry(tmp_path)
    registry.admit("north", public_keys[0])
    registry.file.write_text(content)
    with pytest.raises(StateError, match="is damaged"):
        registry.status(public_keys[0].pem)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["admit", "revoke"]), st.sampled_from("abc"), st.integers(0, 3)), max_size=12
    )
)
def test_a_revoked_key_is_never_admitted(
    tmp_path: Path, public_keys: list[keys.PublicKey], steps: list[tuple[str, str, int]]
) -> None:
    (tmp_path / "sites.json").unlink(missing_ok=True)
    registry = SiteRegistry(tmp_path)
    revoked: set[int] = set()
    for action, name, number in steps:
        names = {key.openssh: n for n, key in registry.sites().items()}
        try:
            if action == "admit":
                registry.admit(name, public_keys[number])
                assert (
                    number not in revoked and public_keys[number].openssh not in names and name not in names.values()
                )
            else:
                key = registry.sites().get(name)
                registry.revoke(name)
                revoked |= {n for n in range(4) if key is not None and public_keys[n].openssh == key.openssh}
        except InputError:
            pass
        assert {n for n in range(4) if registry.status(public_keys[n].pem)[0] == "revoked"} == revoked
        assert len({key.openssh for key in registry.sites().values()}) == len(registry.sites())


def test_the_address_of_a_running_superlink(tmp_path: Path) -> None:
    assert site_registry.running_superlink(tmp_path) is None
    site_registry.publish_address(tmp_path, "127.0.0.1:8000")
    assert site_registry.running_superlink(tmp_path) == ("127.0.0.1:8000", tmp_path / "internal" / "ca.crt")
    site_registry.withdraw_address(tmp_path)
    assert site_registry.running_superlink(tmp_path) is None


def test_a_dead_coordinator_is_not_running(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    (tmp_path / "control.json").write_text(json.dumps({"address": "127.0.0.1:8000", "pid": child.pid}))
    assert site_registry.running_superlink(tmp_path) is None


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner()
    assert run.invoke(app, ["keys", "new", "authority", "--host", "192.0.2.7"]).exit_code == 0
    assert run.invoke(app, ["keys", "new", "site", "north"]).exit_code == 0
    # a renewed certificate is valid for the hosts of the old one, unless others are given
    assert "192.0.2.7" in run.invoke(app, ["keys", "new", "certificate"]).output
    assert "192.0.2.7" not in run.invoke(app, ["keys", "new", "certificate", "--host", "192.0.2.8"]).output
    assert certificate_hosts(tmp_path / "coordinator" / "server.crt") == {
        "192.0.2.8",
        "127.0.0.1",
        "::1",
        "localhost",
    }
    assert "No site is admitted" in run.invoke(app, ["sites"]).output
    assert run.invoke(app, ["sites", "admit", "north", "north.pub"]).exit_code == 0
    assert "admitted" in run.invoke(app, ["sites"]).output
    assert run.invoke(app, ["sites", "revoke", "north"]).exit_code == 0
    (line,) = json.loads(run.invoke(app, ["sites", "list", "--json"]).output)
    assert (line["name"], line["standing"], line["online"]) == ("north", "revoked", None)
    assert main(["keys", "new", "authority"]) == 2
    assert "coordinator/ca.crt exists and is not overwritten" in capsys.readouterr().err
    assert main(["sites", "admit", "south", "north.key"]) == 2
    assert "is a private key" in capsys.readouterr().err
