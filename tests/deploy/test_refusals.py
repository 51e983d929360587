"""Who does not get in, tried with real processes: each is refused, and each is told why in its own sentence."""

from __future__ import annotations

import datetime
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.deploy import parts, running
from tests.deploy.parts import until

from polyfed.cli.app import main
from polyfed.deploy import gateway, keys, site_registry
from polyfed.deploy.app_bundle import bundle
from polyfed.deploy.control import Control
from polyfed.deploy.flower_adapter import Message, RecordDict
from polyfed.deploy.gateway import Gateway
from polyfed.deploy.join_errors import check_server, explain, standing
from polyfed.deploy.processes import Child, free_port
from polyfed.deploy.site_registry import Registry
from polyfed.deploy.supernode_tasks import new_secret
from polyfed.errors import InputError, RunError

LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
UNKNOWN = "this key is not known to the coordinator"
REVOKED = "the key of site '{}' has been revoked by the coordinator"


@dataclass
class Coordinator:
    home: Path
    link: parts.Link
    gate: Gateway
    sites: Registry
    said: list[str]

    @property
    def server(self) -> str:
        return f"127.0.0.1:{self.gate.port}"

    @property
    def ca(self) -> Path:
        return keys.Authority(self.home).certificate

    def node(self, folder: Path, server: str, ca: Path, key: Path) -> Child:
        folder.mkdir(exist_ok=True)
        new_secret(folder / "secret")
        return parts.supernode(folder, server, ca, key, free_port(), folder / "secret")

    def ended(self, child: Child) -> str:
        """Why a SuperNode ended, in our words."""
        until(lambda: child.ended is not None)
        assert child.ended is not None
        return explain(child.ended, child.log.read_text())


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    home = tmp_path_factory.mktemp("coordinator")
    said: list[str] = []
    outer, sites = keys.new_authority(home, []), Registry(home)
    with parts.superlink(home, "--isolation", "process") as link:
        gate = Gateway(
            "127.0.0.1",
            0,
            f"https://{link.address}",
            certificate=outer.server_certificate,
            key=outer.server_key,
            authority=link.authority.certificate,
            standing=sites.standing,
            say=said.append,
        )
        gate.start()
        site_registry.announce(home, link.address)
        try:
            yield Coordinator(home, link, gate, sites, said)
        finally:
            site_registry.retire(home)
            gate.stop()


def test_an_unknown_key(coordinator: Coordinator, tmp_path: Path) -> None:
    key = keys.new_node_key(tmp_path, "stranger").private
    check_server(coordinator.server, coordinator.ca)
    with pytest.raises(RunError, match=UNKNOWN):
        standing(coordinator.server, coordinator.ca, key)
    # and whoever leaves the question out is told the same by the door
    assert coordinator.ended(coordinator.node(tmp_path, coordinator.server, coordinator.ca, key)).startswith(UNKNOWN)
    assert any(UNKNOWN in words for words in coordinator.said)


def test_a_key_that_is_revoked_while_the_site_works(
    coordinator: Coordinator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = keys.new_node_key(tmp_path, "north")
    home = ["--home", str(coordinator.home)]

    def never(message: Message) -> RecordDict:
        raise AssertionError(message)

    assert main(["sites", "admit", "north", str(made.public), *home]) == 0
    assert standing(coordinator.server, coordinator.ca, made.private) == "north"
    with (
        coordinator.link.control() as control,
        parts.site(tmp_path / "north", coordinator.server, coordinator.ca, made.private, never) as site,
    ):
        until(lambda: any(node.online for node in control.nodes()))
        capsys.readouterr()
        assert main(["sites", "list", *home]) == 0
        assert "yes" in capsys.readouterr().out
        assert main(["sites", "revoke", "north", *home]) == 0
        assert "the coordinator that runs knows it" in capsys.readouterr().out
        assert "the coordinator no longer lets this site in" in coordinator.ended(site.child)
        assert control.nodes() == []
    revoked = REVOKED.format("north")
    with pytest.raises(RunError, match=revoked):
        standing(coordinator.server, coordinator.ca, made.private)
    assert any(revoked in words for words in coordinator.said)
    # the door tells a SuperNode that begins, and the SuperLink behind the door refuses it as well
    at_door = coordinator.node(tmp_path / "again", coordinator.server, coordinator.ca, made.private)
    inside = coordinator.node(
        tmp_path / "inside", coordinator.link.address, coordinator.link.authority.certificate, made.private
    )
    assert coordinator.ended(at_door) == revoked
    until(lambda: inside.ended is not None)
    assert "Exit Code: 305" in inside.log.read_text()
    assert main(["sites", "admit", "north", str(made.public), *home]) == 2
    assert "was revoked (site 'north') and stays so" in capsys.readouterr().err


def test_orders_from_outside(coordinator: Coordinator) -> None:
    """Whoever has the authority's certificate (every site) can speak to the port; orders are not taken there."""
    stranger = keys.public_key(next(iter(coordinator.sites.entries())).key) if coordinator.sites.entries() else None
    with Control(coordinator.server, coordinator.ca) as outside, coordinator.link.control() as inside:
        for order in (
            outside.nodes,
            lambda: outside.start_run(bundle()),
            lambda: outside.register("evil", stranger.encoded if stranger else b"x"),
            lambda: outside.unregister(1),
        ):
            with pytest.raises(RunError, match="is not open to the outside; only the fleet interface is"):
                order()
        before = len(inside.nodes())  # the same order on loopback is taken
        assert before == len(coordinator.sites.sites())


# before anything of Flower is started

Door = Callable[..., str]


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    """Opens gateways in front of nothing."""
    opened: list[Gateway] = []

    def make(authority: keys.Authority | None, host: str = "127.0.0.1") -> str:
        gate = Gateway(
            host,
            0,
            "http://127.0.0.1:9",
            certificate=None if authority is None else authority.server_certificate,
            key=None if authority is None else authority.server_key,
            authority=None,
            standing=None if authority is None else Registry(tmp_path).standing,
            say=lambda words: None,
        )
        gate.start()
        opened.append(gate)
        return f"{host}:{gate.port}"

    yield make
    for gate in opened:
        gate.stop()


def test_another_authority(tmp_path: Path, door: Door) -> None:
    server, other = door(keys.new_authority(tmp_path / "one", [])), keys.new_authority(tmp_path / "two", [])
    with pytest.raises(RunError, match=f"the certificate of {server} is not signed by the authority in .*two/ca.crt"):
        check_server(server, other.certificate)


def test_an_expired_certificate(tmp_path: Path, door: Door) -> None:
    authority = keys.new_authority(tmp_path, [], days=30, now=LONG_AGO)
    server = door(authority)
    with pytest.raises(RunError, match="has expired; its coordinator renews it with `polyfed keys new certificate`"):
        check_server(server, authority.certificate)
    keys.renew_server(tmp_path, [])
    check_server(door(authority), authority.certificate)


def test_a_certificate_that_begins_later(tmp_path: Path, door: Door) -> None:
    authority = keys.new_authority(tmp_path, [], now=datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2))
    with pytest.raises(RunError, match="is not valid yet; compare the clocks"):
        check_server(door(authority), authority.certificate)


def test_a_certificate_for_other_hosts(tmp_path: Path, door: Door) -> None:
    authority = keys.new_authority(tmp_path, [])
    with pytest.raises(RunError, match=r"is for other hosts than 127[.]0[.]0[.]2; its coordinator adds it"):
        check_server(door(authority, "127.0.0.2"), authority.certificate)


def test_a_coordinator_without_tls(tmp_path: Path, door: Door) -> None:
    server = door(None)
    with pytest.raises(RunError, match=f"what answers at {server} does not speak TLS"):
        check_server(server, keys.new_authority(tmp_path, []).certificate)
    check_server(server, None)


def test_a_site_without_tls(tmp_path: Path, door: Door) -> None:
    with pytest.raises(RunError, match="speaks TLS; leave out --insecure and give --ca and --key"):
        check_server(door(keys.new_authority(tmp_path, [])), None)


@pytest.mark.parametrize(
    ("off", "says"), [(400.0, "400 seconds behind that of"), (-20.0, "20 seconds ahead of that")]
)
def test_clocks_that_flower_would_refuse(
    off: float, says: str, tmp_path: Path, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, made = keys.new_authority(tmp_path, []), keys.new_node_key(tmp_path, "north")
    Registry(tmp_path).admit("north", keys.read_public_key(made.public))
    server = door(authority)
    assert standing(server, authority.certificate, made.private) == "north"
    monkeypatch.setattr(
        gateway, "time", types.SimpleNamespace(time=lambda: time.time() + off, monotonic=time.monotonic)
    )
    with pytest.raises(RunError, match=says):
        standing(server, authority.certificate, made.private)


def joined(folder: Path, server: str, *known: str) -> str:
    """What `polyfed join` says as a process of its own, which ends by itself."""
    site = running.start(
        folder / "join.log", "join", "--server", server, *known, "--rehearsal", "--state", str(folder / "state")
    )
    assert site.popen.wait(120) != 0
    assert not (folder / "state" / "supernode.log").exists()  # nothing of Flower was started
    return site.said()


def test_join_ends_with_the_reason(tmp_path: Path, door: Door) -> None:
    """Another authority, an expired certificate, no TLS on either side, and a key that nobody knows."""
    good, other = keys.new_authority(tmp_path / "good", []), keys.new_authority(tmp_path / "other", [])
    old = keys.new_authority(tmp_path / "old", [], days=30, now=LONG_AGO)
    key = ("--key", str(keys.new_node_key(tmp_path, "north").private), "--ca")
    bare = ("--insecure", "--name", "north")
    tries: list[tuple[str, str, tuple[str, ...]]] = [
        ("is not signed by the authority in", door(good), (*key, str(other.certificate))),
        ("has expired", door(old), (*key, str(old.certificate))),
        ("does not speak TLS", door(None), (*key, str(good.certificate))),
        (UNKNOWN, door(good), (*key, str(good.certificate))),
        ("speaks TLS; leave out --insecure", door(good), bare),
    ]
    for sentence, server, known in tries:
        assert sentence in joined(tmp_path, server, *known)
        (tmp_path / "join.log").unlink()


def test_join_without_tls_says_so_in_every_line(tmp_path: Path) -> None:
    """It waits for a coordinator that never comes, and is told to end."""
    where = ("--server", f"127.0.0.1:{free_port()}", "--insecure", "--name", "north", "--rehearsal")
    site = running.start(tmp_path / "join.log", "join", *where, "--state", str(tmp_path / "state"))
    with running.ending(site):
        running.until(lambda: "waiting for it" in site.said(), "a line", site.said)
    lines = site.said().splitlines()
    assert lines[0].startswith("INSECURE (no TLS, no keys): no coordinator answers")


def test_nobody_there(tmp_path: Path) -> None:
    authority = keys.new_authority(tmp_path, [])
    with pytest.raises(RunError, match="no coordinator answers at"):
        check_server(f"127.0.0.1:{free_port()}", authority.certificate)


@pytest.mark.parametrize("server", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x"])
def test_no_address(server: str) -> None:
    with pytest.raises(InputError, match="give HOST:PORT"):
        check_server(server, None)


def test_no_authority(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for file in ("empty", "missing"):
        with pytest.raises(InputError, match="holds no certificate authority"):
            check_server("127.0.0.1:1", tmp_path / file)


@pytest.mark.parametrize(
    ("code", "output", "sentence"),
    [
        (1, "Exit Code: 302\nUnable to parse", "Flower cannot read the site's key"),
        (1, "Exit Code: 606\nold", "the coordinator uses another version of Flower"),
        (1, "Exit Code: 305\nFailed to\n[code: 400] this key is not known", "this key is not known"),
        (1, "Exit Code: 305\nFailed to", "the connection to the coordinator could not be made"),
        (0, "SuperNode terminated gracefully.", "the SuperNode was told to end"),
        (3, "line\nlast line\n\n", "the SuperNode ended with code 3: last line"),
        (1, "Exit Code: 600\nno address", "the SuperNode ended with code 600: no address"),
        (9, "", "the SuperNode ended with code 9: it said nothing"),
    ],
)
def test_why_a_supernode_ended(code: int, output: str, sentence: str) -> None:
    assert explain(code, output).startswith(sentence)
