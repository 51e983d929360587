"""The list of sites: one name, one key, and a key that was revoked stays revoked."""

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
from polyfed.deploy.allowlist import names_in
from polyfed.deploy.site_registry import Registry
from polyfed.errors import InputError, StateError


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> list[keys.PublicKey]:
    folder = tmp_path_factory.mktemp("keys")
    return [keys.read_public_key(keys.new_node_key(folder, f"k{n}").public) for n in range(4)]


def test_from_unknown_to_revoked(tmp_path: Path, public: list[keys.PublicKey]) -> None:
    sites = Registry(tmp_path)
    assert sites.sites() == {} and sites.standing(public[0].encoded) == ("unknown", "")
    sites.admit("south", public[0])
    sites.admit("north", public[1])
    assert list(sites.sites()) == ["north", "south"]
    assert sites.standing(public[0].encoded) == ("admitted", "south")
    sites.revoke("south")
    assert list(sites.sites()) == ["north"]
    assert sites.standing(public[0].encoded) == ("revoked", "south")
    with pytest.raises(InputError, match=r"this key was revoked \(site 'south'\) and stays so"):
        sites.admit("east", public[0])
    sites.admit("south", public[2])
    assert sites.standing(public[2].encoded) == ("admitted", "south")
    assert sites.standing(public[0].encoded) == ("revoked", "south")


def test_a_revoked_key_in_another_form_stays_revoked(tmp_path: Path) -> None:
    file = keys.new_node_key(tmp_path, "north").public
    sites = Registry(tmp_path)
    sites.admit("north", keys.read_public_key(file))
    sites.revoke("north")
    kind, text, *_ = file.read_text().split()
    for other in (f"{kind} {text}=", f"{kind}   {text} somebody else", f"{kind} {text.rstrip('=')}===="):
        file.write_text(other)
        with pytest.raises(InputError):
            sites.admit("south", keys.read_public_key(file))
    # and a list in which it stands twice, as somebody may have written it by hand
    (entry,) = json.loads(sites.file.read_text())["sites"]
    sites.file.write_text(json.dumps({"sites": [entry, {**entry, "name": "south", "revoked": False}]}))
    key = keys.public_key(entry["key"])
    assert sites.standing(key.encoded)[0] == "revoked" and sites.sites() == {}


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    made = {f"s{n}": keys.read_public_key(keys.new_node_key(tmp_path, f"s{n}").public) for n in range(6)}
    sites = Registry(tmp_path)
    sites.admit("old", keys.read_public_key(keys.new_node_key(tmp_path, "old").public))
    changes = [threading.Thread(target=Registry(tmp_path).admit, args=one) for one in made.items()]
    changes.append(threading.Thread(target=Registry(tmp_path).revoke, args=("old",)))
    for change in changes:
        change.start()
    for change in changes:
        change.join()
    assert list(sites.sites()) == sorted(made)
    assert [entry.name for entry in sites.entries() if entry.revoked] == ["old"]


def test_names_and_keys_are_taken_once(tmp_path: Path, public: list[keys.PublicKey]) -> None:
    sites = Registry(tmp_path)
    sites.admit("north", public[0])
    before = sites.file.read_bytes()
    with pytest.raises(InputError, match="admitted already, as site 'north'"):
        sites.admit("south", public[0])
    with pytest.raises(InputError, match="there is a site 'north' with another key"):
        sites.admit("north", public[1])
    with pytest.raises(InputError, match="no site 'nroth' is admitted; did you mean 'north'"):
        sites.revoke("nroth")
    with pytest.raises(InputError, match="cannot name a site"):
        sites.admit("North", public[1])
    assert sites.file.read_bytes() == before


def test_another_process_is_seen(tmp_path: Path, public: list[keys.PublicKey]) -> None:
    here, there = Registry(tmp_path), Registry(tmp_path)
    there.admit("north", public[0])
    assert here.standing(public[0].encoded) == ("admitted", "north")
    there.revoke("north")
    assert here.standing(public[0].encoded) == ("revoked", "north")


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"sites": [{"name": "a"}]}', '{"sites": [{"name": "a", "key": "x", "revoked": false}]}'],
)
def test_a_damaged_list_admits_nobody(tmp_path: Path, public: list[keys.PublicKey], content: str) -> None:
    sites = Registry(tmp_path)
    sites.admit("north", public[0])
    sites.file.write_text(content)
    with pytest.raises(StateError, match="is damaged"):
        sites.standing(public[0].encoded)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["admit", "revoke"]), st.sampled_from("abc"), st.integers(0, 3)), max_size=12
    )
)
def test_a_revoked_key_never_returns(
    tmp_path: Path, public: list[keys.PublicKey], steps: list[tuple[str, str, int]]
) -> None:
    (tmp_path / "sites.json").unlink(missing_ok=True)
    sites = Registry(tmp_path)
    gone: set[int] = set()
    for what, name, number in steps:
        holder = {key.line: n for n, key in sites.sites().items()}
        try:
            if what == "admit":
                sites.admit(name, public[number])
                assert number not in gone and public[number].line not in holder and name not in holder.values()
            else:
                key = sites.sites().get(name)
                sites.revoke(name)
                gone |= {n for n in range(4) if key is not None and public[n].line == key.line}
        except InputError:
            pass
        assert {n for n in range(4) if sites.standing(public[n].encoded)[0] == "revoked"} == gone
        assert len({key.line for key in sites.sites().values()}) == len(sites.sites())


def test_where_a_coordinator_answers(tmp_path: Path) -> None:
    assert site_registry.running(tmp_path) is None
    site_registry.announce(tmp_path, "127.0.0.1:8000")
    assert site_registry.running(tmp_path) == ("127.0.0.1:8000", tmp_path / "internal" / "ca.crt")
    site_registry.retire(tmp_path)
    assert site_registry.running(tmp_path) is None


def test_a_coordinator_that_died_is_not_running(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    (tmp_path / "control.json").write_text(json.dumps({"address": "127.0.0.1:8000", "pid": child.pid}))
    assert site_registry.running(tmp_path) is None


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner()
    assert run.invoke(app, ["keys", "new", "authority", "--host", "192.0.2.7"]).exit_code == 0
    assert run.invoke(app, ["keys", "new", "site", "north"]).exit_code == 0
    # a renewed certificate is for the hosts of the old one, unless others are given
    assert "192.0.2.7" in run.invoke(app, ["keys", "new", "certificate"]).output
    assert "192.0.2.7" not in run.invoke(app, ["keys", "new", "certificate", "--host", "192.0.2.8"]).output
    assert names_in(tmp_path / "coordinator" / "server.crt") == {"192.0.2.8", "127.0.0.1", "::1", "localhost"}
    assert "No site is admitted" in run.invoke(app, ["sites"]).output
    assert run.invoke(app, ["sites", "admit", "north", "north.pub"]).exit_code == 0
    assert "admitted" in run.invoke(app, ["sites"]).output
    assert run.invoke(app, ["sites", "revoke", "north"]).exit_code == 0
    (line,) = json.loads(run.invoke(app, ["sites", "list", "--json"]).output)
    assert (line["name"], line["standing"], line["online"]) == ("north", "revoked", None)
    assert main(["keys", "new", "authority"]) == 2
    assert "coordinator/ca.crt exists and is kept" in capsys.readouterr().err
    assert main(["sites", "admit", "south", "north.key"]) == 2
    assert "is a private key" in capsys.readouterr().err
