"""Tasks of a SuperNode: a site runs only the installed app, and only with the secret of the site."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
from tests.deploy import flower_parts
from tests.deploy.flower_names import ProtobufClientInterceptor
from tests.deploy.flower_parts import wait_until

import polyfed
from polyfed.deploy import keys, supernode_tasks
from polyfed.deploy.app_bundle import build_app
from polyfed.deploy.certificates import create_authority
from polyfed.deploy.flower_adapter import (
    AcquireTaskRequest,
    Message,
    RecordDict,
    RuntimeHttpClient,
    RuntimeVersionHttpInterceptor,
    signed_by_secret,
)
from polyfed.deploy.flower_protocol import SUPERNODE
from polyfed.deploy.processes import ChildProcess, flower_environment, free_port, is_listening, python_command


def test_the_installed_app_is_recognised_by_its_bytes() -> None:
    assert supernode_tasks.is_installed_app(build_app())
    assert not supernode_tasks.is_installed_app(build_app() + b"\0")
    assert not supernode_tasks.is_installed_app(b"")


def test_a_secret_can_be_read_by_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    first = supernode_tasks.create_secret(file)
    assert file.read_bytes() == first and len(first) == 32 and file.stat().st_mode & 0o777 == 0o600
    assert supernode_tasks.create_secret(file) != first


def test_a_foreign_app_is_refused_before_any_of_its_code_runs(tmp_path: Path) -> None:
    """An attacker on the coordinator's machine starts a run with code of their own.

    An ordinary SuperNode takes part as well, to show that the code would run.
    """
    key_pairs = {name: keys.create_site_key(tmp_path, name) for name in ("guarded", "open")}
    answers = tmp_path / "answers.json"

    def never(message: Message) -> RecordDict:
        raise AssertionError(message)

    with flower_parts.run_superlink(tmp_path) as link, link.control() as control:
        ca = link.certificates.authority
        for name, key in key_pairs.items():
            control.register(name, keys.read_public_key(key.public).pem)
        (tmp_path / "open").mkdir()
        command = [*python_command(*SUPERNODE), "--superlink", link.address, "--root-certificates", str(ca)]
        command += ["--auth-supernode-private-key", str(key_pairs["open"].private)]
        command += ["--host", "127.0.0.1", "--port", str(free_port())]
        environment = flower_parts.with_commands(flower_environment(tmp_path / "open" / "flower"))
        unguarded = ChildProcess("SuperNode", command, tmp_path / "open" / "supernode.log", environment)
        try:
            with flower_parts.run_site(
                tmp_path / "guarded", link.address, ca, key_pairs["guarded"].private, never
            ) as site:
                wait_until(lambda: sum(node.online for node in control.nodes()) == 2)
                control.start_run(flower_parts.foreign_app(answers))
                wait_until(answers.exists)
        finally:
            unguarded.stop()
    reason = (
        f"the run brings the app 'stranger/foreign' 1.0.0, which is not the installed polyfed {polyfed.__version__}; "
        "this site runs no code from the network"
    )
    assert site.notices == [reason]
    assert sorted(json.loads(answers.read_text()), key=str) == [[7, reason], "answered"]
    assert (tmp_path / "open" / "flower" / "marker").read_text() == "ran"
    assert list((tmp_path / "guarded").rglob("*marker*")) == []
    assert list((tmp_path / "guarded").rglob("*foreign*")) == []  # not even unpacked


def test_other_processes_cannot_take_tasks(tmp_path: Path) -> None:
    """The local interface of a SuperNode gives tasks only to processes that have the site's secret."""
    key, ca = keys.create_site_key(tmp_path, "north").private, create_authority(tmp_path, []).authority
    secret, port = supernode_tasks.create_secret(tmp_path / "secret"), free_port()
    child = flower_parts.start_supernode(tmp_path, "127.0.0.1:9", ca, key, port, tmp_path / "secret")
    authority = (tmp_path / "internal" / "ca.crt").read_bytes()

    def status(given: bytes | None) -> int:
        interceptors: list[ProtobufClientInterceptor] = [RuntimeVersionHttpInterceptor(component_name="test")]
        if given is not None:
            interceptors.append(signed_by_secret(given))
        client = RuntimeHttpClient.from_server_address(f"127.0.0.1:{port}", False, authority, interceptors)
        try:
            with client:
                client.AcquireTask(AcquireTaskRequest(supported_task_types=supernode_tasks.TASK_TYPES))
        except httpx.HTTPStatusError as error:
            return error.response.status_code
        return 200

    try:
        child.wait_until(lambda: is_listening("127.0.0.1", port), 60)
        assert [status(secret), status(b"another"), status(None)] == [200, 401, 401]
    finally:
        child.kill()
