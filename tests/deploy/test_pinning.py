"""A site runs only the app that it has installed: tried by somebody inside who sends another."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
from tests.deploy import parts
from tests.deploy.flower_names import ProtobufClientInterceptor
from tests.deploy.parts import until

import polyfed
from polyfed.deploy import keys, supernode_tasks
from polyfed.deploy.app_bundle import bundle
from polyfed.deploy.flower_adapter import (
    AcquireTaskRequest,
    Message,
    RecordDict,
    RuntimeHttpClient,
    RuntimeVersionHttpInterceptor,
    signed_by_secret,
)
from polyfed.deploy.flower_protocol import SUPERNODE
from polyfed.deploy.processes import Child, free_port, listens, program, quiet


def test_the_installed_app_is_known_by_its_bytes() -> None:
    assert supernode_tasks.is_installed_app(bundle())
    assert not supernode_tasks.is_installed_app(bundle() + b"\0")
    assert not supernode_tasks.is_installed_app(b"")


def test_a_secret_is_for_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    first = supernode_tasks.new_secret(file)
    assert file.read_bytes() == first and len(first) == 32 and file.stat().st_mode & 0o777 == 0o600
    assert supernode_tasks.new_secret(file) != first


def test_a_foreign_app_is_refused_before_any_of_it_runs(tmp_path: Path) -> None:
    """Somebody who has the coordinator's machine starts a run with code of his own on every site.

    A SuperNode as Flower starts it is there too, to show that the code would run.
    """
    made = {name: keys.new_node_key(tmp_path, name) for name in ("guarded", "open")}
    answers = tmp_path / "answers.json"

    def never(message: Message) -> RecordDict:
        raise AssertionError(message)

    with parts.superlink(tmp_path) as link, link.control() as control:
        ca = link.authority.certificate
        for name, key in made.items():
            control.register(name, keys.read_public_key(key.public).encoded)
        (tmp_path / "open").mkdir()
        command = [*program(*SUPERNODE), "--superlink", link.address, "--root-certificates", str(ca)]
        command += ["--auth-supernode-private-key", str(made["open"].private)]
        command += ["--host", "127.0.0.1", "--port", str(free_port())]
        flower = parts.with_commands(quiet(tmp_path / "open" / "flower"))
        unguarded = Child("SuperNode", command, tmp_path / "open" / "supernode.log", flower)
        try:
            with parts.site(tmp_path / "guarded", link.address, ca, made["guarded"].private, never) as site:
                until(lambda: sum(node.online for node in control.nodes()) == 2)
                control.start_run(parts.foreign_app(answers))
                until(answers.exists)
        finally:
            unguarded.stop()
    sentence = (
        f"the run brings the app 'stranger/foreign' 1.0.0, which is not the installed polyfed {polyfed.__version__}; "
        "this site runs no code from the wire"
    )
    assert site.refusals == [sentence]
    assert sorted(json.loads(answers.read_text()), key=str) == [[7, sentence], "answered"]
    assert (tmp_path / "open" / "flower" / "marker").read_text() == "ran"
    assert list((tmp_path / "guarded").rglob("*marker*")) == []
    assert list((tmp_path / "guarded").rglob("*foreign*")) == []  # not even unpacked


def test_others_on_the_machine_cannot_take_tasks(tmp_path: Path) -> None:
    """The local interface of a SuperNode gives tasks to nobody without the secret of its site."""
    key, ca = keys.new_node_key(tmp_path, "north").private, keys.new_authority(tmp_path, []).certificate
    secret, port = supernode_tasks.new_secret(tmp_path / "secret"), free_port()
    child = parts.supernode(tmp_path, "127.0.0.1:9", ca, key, port, tmp_path / "secret")
    inside = (tmp_path / "inside" / "ca.crt").read_bytes()

    def status(with_secret: bytes | None) -> int:
        sent: list[ProtobufClientInterceptor] = [RuntimeVersionHttpInterceptor(component_name="test")]
        if with_secret is not None:
            sent.append(signed_by_secret(with_secret))
        client = RuntimeHttpClient.from_server_address(f"127.0.0.1:{port}", False, inside, sent)
        try:
            with client:
                client.AcquireTask(AcquireTaskRequest(supported_task_types=supernode_tasks.TASKS))
        except httpx.HTTPStatusError as error:
            return error.response.status_code
        return 200

    try:
        child.wait_until(lambda: listens("127.0.0.1", port), 60)
        assert [status(secret), status(b"another"), status(None)] == [200, 401, 401]
    finally:
        child.kill()
