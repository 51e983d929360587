"""Sites that cannot join, with real processes: each is refused with its own reason."""

from __future__ import annotations

import datetime
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.deploy import flower_parts, polyfed_processes
from tests.deploy.flower_parts import wait_until

from polyfed.cli.app import main
from polyfed.deploy import gateway as gateway_module
from polyfed.deploy import keys, site_registry
from polyfed.deploy.app_bundle import build_app
from polyfed.deploy.certificates import CertificateFolder, create_authority, renew_server
from polyfed.deploy.flower_adapter import Message, RecordDict
from polyfed.deploy.gateway import Gateway
from polyfed.deploy.join_errors import admitted_name, check_server, explain_exit
from polyfed.deploy.processes import ChildProcess, free_port
from polyfed.deploy.site_registry import SiteRegistry
from polyfed.deploy.superlink_control import ControlClient
from polyfed.deploy.supernode_tasks import create_secret
from polyfed.errors import InputError, RunError

LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
UNKNOWN = "this key is not known to the coordinator"
REVOKED = "the key of site '{}' has been revoked by the coordinator"


@dataclass
class Coordinator:
    home: Path
    superlink: flower_parts.SuperLink
    gateway: Gateway
    registry: SiteRegistry
    notices: list[str]

    @property
    def server(self) -> str:
        return f"127.0.0.1:{self.gateway.port}"

    @property
    def ca(self) -> Path:
        return CertificateFolder(self.home).authority

    def start_node(self, folder: Path, server: str, ca: Path, key: Path) -> ChildProcess:
        folder.mkdir(exist_ok=True)
        create_secret(folder / "secret")
        return flower_parts.start_supernode(folder, server, ca, key, free_port(), folder / "secret")

    def exit_reason(self, child: ChildProcess) -> str:
        """Wait for a SuperNode to end. Return the reason that polyfed reports."""
        wait_until(lambda: child.exit_code is not None)
        assert child.exit_code is not None
        return explain_exit(child.exit_code, child.log.read_text())


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    home = tmp_path_factory.mktemp("coordinator")
    notices: list[str] = []
    certificates, registry = create_authority(home, []), SiteRegistry(home)
    with flower_parts.run_superlink(home, "--isolation", "process") as superlink:
        gateway = Gateway(
            "127.0.0.1",
            0,
            f"https://{superlink.address}",
            certificate=certificates.server,
            key=certificates.server_key,
            authority=superlink.certificates.authority,
            status_of_key=registry.status,
            notify=notices.append,
        )
        gateway.start()
        site_registry.publish_address(home, superlink.address)
        try:
            yield Coordinator(home, superlink, gateway, registry, notices)
        finally:
            site_registry.withdraw_address(home)
            gateway.stop()


def test_an_unknown_key(coordinator: Coordinator, tmp_path: Path) -> None:
    key = keys.create_site_key(tmp_path, "stranger").private
    check_server(coordinator.server, coordinator.ca)
    with pytest.raises(RunError, match=UNKNOWN):
        admitted_name(coordinator.server, coordinator.ca, key)
    # a SuperNode that does not ask first gets the same answer from the gateway
    assert coordinator.exit_reason(
        coordinator.start_node(tmp_path, coordinator.server, coordinator.ca, key)
    ).startswith(UNKNOWN)
    assert any(UNKNOWN in notice for notice in coordinator.notices)


def test_a_key_that_is_revoked_while_the_site_is_connected(
    coordinator: Coordinator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = keys.create_site_key(tmp_path, "north")
    home = ["--home", str(coordinator.home)]

    def never(message: Message) -> RecordDict:
        raise AssertionError(message)

    assert main(["sites", "admit", "north", str(pair.public), *home]) == 0
    assert admitted_name(coordinator.server, coordinator.ca, pair.private) == "north"
    with (
        coordinator.superlink.control() as control,
        flower_parts.run_site(tmp_path / "north", coordinator.server, coordinator.ca, pair.private, never) as site,
    ):
        wait_until(lambda: any(node.online for node in control.nodes()))
        capsys.readouterr()
        assert main(["sites", "list", *home]) == 0
        assert "yes" in capsys.readouterr().out
        assert main(["sites", "revoke", "north", *home]) == 0
        assert "the running coordinator has been updated" in capsys.readouterr().out
        assert "the coordinator no longer admits this site" in coordinator.exit_reason(site.child)
        assert control.nodes() == []
    revoked = REVOKED.format("north")
    with pytest.raises(RunError, match=revoked):
        admitted_name(coordinator.server, coordinator.ca, pair.private)
    assert any(revoked in notice for notice in coordinator.notices)
    # the gateway gives the reason to a SuperNode that starts, and the SuperLink behind it refuses the key as well
    outside = coordinator.start_node(tmp_path / "again", coordinator.server, coordinator.ca, pair.private)
    inside = coordinator.start_node(
        tmp_path / "inside", coordinator.superlink.address, coordinator.superlink.certificates.authority, pair.private
    )
    assert coordinator.exit_reason(outside) == revoked
    wait_until(lambda: inside.exit_code is not None)
    assert "Exit Code: 305" in inside.log.read_text()
    assert main(["sites", "admit", "north", str(pair.public), *home]) == 2
    assert "was revoked (site 'north') and cannot be admitted again" in capsys.readouterr().err


def test_commands_from_outside(coordinator: Coordinator) -> None:
    """Every site has the authority's certificate and can connect to the port, but no command passes it."""
    stranger = (
        keys.parse_public_key(next(iter(coordinator.registry.entries())).key)
        if coordinator.registry.entries()
        else None
    )
    with ControlClient(coordinator.server, coordinator.ca) as outside, coordinator.superlink.control() as inside:
        for command in (
            outside.nodes,
            lambda: outside.start_run(build_app()),
            lambda: outside.register("evil", stranger.pem if stranger else b"x"),
            lambda: outside.unregister(1),
        ):
            with pytest.raises(RunError, match="is not open to the outside; only the fleet interface is"):
                command()
        # the same command works on loopback
        assert len(inside.nodes()) == len(coordinator.registry.sites())


# before Flower is started

OpenGateway = Callable[..., str]


@pytest.fixture
def open_gateway(tmp_path: Path) -> Iterator[OpenGateway]:
    """Opens gateways without a SuperLink behind them."""
    gateways: list[Gateway] = []

    def make(certificates: CertificateFolder | None, host: str = "127.0.0.1") -> str:
        gateway = Gateway(
            host,
            0,
            "http://127.0.0.1:9",
            certificate=None if certificates is None else certificates.server,
            key=None if certificates is None else certificates.server_key,
            authority=None,
            status_of_key=None if certificates is None else SiteRegistry(tmp_path).status,
            notify=lambda notice: None,
        )
        gateway.start()
        gateways.append(gateway)
        return f"{host}:{gateway.port}"

    yield make
    for gateway in gateways:
        gateway.stop()


def test_another_authority(tmp_path: Path, open_gateway: OpenGateway) -> None:
    server, other = (
        open_gateway(create_authority(tmp_path / "one", [])),
        create_authority(tmp_path / "two", []),
    )
    with pytest.raises(RunError, match=f"the certificate of {server} is not signed by the authority in .*two/ca.crt"):
        check_server(server, other.authority)


def test_an_expired_certificate(tmp_path: Path, open_gateway: OpenGateway) -> None:
    certificates = create_authority(tmp_path, [], days=30, now=LONG_AGO)
    server = open_gateway(certificates)
    with pytest.raises(RunError, match="has expired; its coordinator renews it with `polyfed keys new certificate`"):
        check_server(server, certificates.authority)
    renew_server(tmp_path, [])
    check_server(open_gateway(certificates), certificates.authority)


def test_a_certificate_that_is_not_valid_yet(tmp_path: Path, open_gateway: OpenGateway) -> None:
    certificates = create_authority(
        tmp_path, [], now=datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)
    )
    with pytest.raises(RunError, match="is not valid yet; compare the clocks"):
        check_server(open_gateway(certificates), certificates.authority)


def test_a_certificate_for_other_hosts(tmp_path: Path, open_gateway: OpenGateway) -> None:
    certificates = create_authority(tmp_path, [])
    with pytest.raises(RunError, match=r"is for other hosts than 127[.]0[.]0[.]2; its coordinator adds it"):
        check_server(open_gateway(certificates, "127.0.0.2"), certificates.authority)


def test_a_coordinator_without_tls(tmp_path: Path, open_gateway: OpenGateway) -> None:
    server = open_gateway(None)
    with pytest.raises(RunError, match=f"the server at {server} does not use TLS"):
        check_server(server, create_authority(tmp_path, []).authority)
    check_server(server, None)


def test_a_site_without_tls(tmp_path: Path, open_gateway: OpenGateway) -> None:
    with pytest.raises(RunError, match="uses TLS; leave out --insecure and give --ca and --key"):
        check_server(open_gateway(create_authority(tmp_path, [])), None)


@pytest.mark.parametrize(
    ("offset", "message"), [(400.0, "400 seconds behind that of"), (-20.0, "20 seconds ahead of that")]
)
def test_clocks_that_differ_too_much(
    offset: float, message: str, tmp_path: Path, open_gateway: OpenGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates, pair = create_authority(tmp_path, []), keys.create_site_key(tmp_path, "north")
    SiteRegistry(tmp_path).admit("north", keys.read_public_key(pair.public))
    server = open_gateway(certificates)
    assert admitted_name(server, certificates.authority, pair.private) == "north"
    monkeypatch.setattr(
        gateway_module, "time", types.SimpleNamespace(time=lambda: time.time() + offset, monotonic=time.monotonic)
    )
    with pytest.raises(RunError, match=message):
        admitted_name(server, certificates.authority, pair.private)


def join(folder: Path, server: str, *credentials: str) -> str:
    """Run `polyfed join` as a process that ends by itself. Return its output."""
    site = polyfed_processes.start(
        folder / "join.log", "join", "--server", server, *credentials, "--rehearsal", "--state", str(folder / "state")
    )
    assert site.popen.wait(120) != 0
    assert not (folder / "state" / "supernode.log").exists()  # Flower was not started
    return site.output()


def test_join_prints_the_reason(tmp_path: Path, open_gateway: OpenGateway) -> None:
    """Another authority, an expired certificate, no TLS on either side, and an unknown key."""
    good, other = (
        create_authority(tmp_path / "good", []),
        create_authority(tmp_path / "other", []),
    )
    old = create_authority(tmp_path / "old", [], days=30, now=LONG_AGO)
    key = ("--key", str(keys.create_site_key(tmp_path, "north").private), "--ca")
    insecure = ("--insecure", "--name", "north")
    cases: list[tuple[str, str, tuple[str, ...]]] = [
        ("is not signed by the authority in", open_gateway(good), (*key, str(other.authority))),
        ("has expired", open_gateway(old), (*key, str(old.authority))),
        ("does not use TLS", open_gateway(None), (*key, str(good.authority))),
        (UNKNOWN, open_gateway(good), (*key, str(good.authority))),
        ("uses TLS; leave out --insecure", open_gateway(good), insecure),
    ]
    for reason, server, credentials in cases:
        assert reason in join(tmp_path, server, *credentials)
        (tmp_path / "join.log").unlink()


def test_join_without_tls_marks_every_line(tmp_path: Path) -> None:
    """It waits for a coordinator that never starts, and is terminated."""
    where = ("--server", f"127.0.0.1:{free_port()}", "--insecure", "--name", "north", "--rehearsal")
    site = polyfed_processes.start(tmp_path / "join.log", "join", *where, "--state", str(tmp_path / "state"))
    with polyfed_processes.stopping(site):
        polyfed_processes.wait_until(lambda: "waiting for it" in site.output(), "a line", site.output)
    lines = site.output().splitlines()
    assert lines[0].startswith("INSECURE (no TLS, no keys): no coordinator answers")


def test_no_coordinator(tmp_path: Path) -> None:
    certificates = create_authority(tmp_path, [])
    with pytest.raises(RunError, match="no coordinator answers at"):
        check_server(f"127.0.0.1:{free_port()}", certificates.authority)


@pytest.mark.parametrize("server", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x"])
def test_an_invalid_address(server: str) -> None:
    with pytest.raises(InputError, match="give HOST:PORT"):
        check_server(server, None)


def test_an_invalid_authority(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for file in ("empty", "missing"):
        with pytest.raises(InputError, match="holds no certificate authority"):
            check_server("127.0.0.1:1", tmp_path / file)


@pytest.mark.parametrize(
    ("code", "output", "reason"),
    [
        (1, "Exit Code: 302\nUnable to parse", "Flower cannot read the site's key"),
        (1, "Exit Code: 606\nold", "the coordinator uses another version of Flower"),
        (1, "Exit Code: 305\nFailed to\n[code: 400] this key is not known", "this key is not known"),
        (1, "Exit Code: 305\nFailed to\n[code: 2004] Failed", "the coordinator still lists this site as online"),
        (1, "Exit Code: 305\nFailed to", "the SuperNode could not connect to the coordinator"),
        (0, "SuperNode terminated gracefully.", "the SuperNode was stopped"),
        (3, "line\nlast line\n\n", "the SuperNode ended with code 3: last line"),
        (1, "Exit Code: 600\nno address", "the SuperNode ended with code 600: no address"),
        (9, "", "the SuperNode ended with code 9: it printed nothing"),
    ],
)
def test_why_a_supernode_ended(code: int, output: str, reason: str) -> None:
    assert explain_exit(code, output).startswith(reason)
