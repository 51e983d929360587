"""What polyfed needs from Flower: names, attributes and values. After an update of Flower, run these tests first.

Nothing here imports the adapter when tests are collected, so a missing name does not hide the others.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import polyfed
from polyfed.deploy import flower_protocol, quick_supernode
from polyfed.deploy.flower_protocol import FLEET, REGISTRATION_PATHS, SITE_PATHS

PACKAGE = Path(polyfed.__file__).parent
ADAPTER = PACKAGE / "deploy" / "flower_adapter.py"
PROTOCOL = PACKAGE / "deploy" / "flower_protocol.py"
TEST_NAMES = Path(__file__).with_name("flower_names.py")
# These benchmarks measure Flower's own simulation, without polyfed.
BENCHMARKS = ("flower_simulation.py", "peer_scripts/flower_peer.py")
EXCEPTIONS = {ADAPTER, PROTOCOL, *(PACKAGE / "benchmarks" / name for name in BENCHMARKS)}
# Attributes of classes and fields of protobuf messages that polyfed uses, by their name in the adapter.
ATTRIBUTES = {
    "ControlHttpClient": [
        *("from_server_address", "close", "ListNodes", "RegisterNode", "UnregisterNode"),
        *("StartRun", "ListRuns", "StopRun"),
    ],
    "RuntimeHttpClient": [
        *("from_server_address", "close", "AcquireTask", "PullTaskInput", "PushTaskOutput", "SendTaskHeartbeat"),
        *("PullMessages", "PullObject", "ConfirmMessageReceived"),
    ],
    "HttpGrid": ["set_run", "run", "get_nodes", "push_messages", "pull_messages", "_runtime_client"],
    "HeartbeatSender": ["start", "stop"],
    "Status": ["FINISHED"],
    "SubStatus": ["COMPLETED", "FAILED"],
    "TaskType": ["SERVER_APP", "CLIENT_APP", "AGENT_APP"],
    "ErrorCode": [
        *("MESSAGE_UNAVAILABLE", "REPLY_MESSAGE_UNAVAILABLE", "NODE_UNAVAILABLE", "INVALID_FAB"),
        *("CLIENT_APP_CRASHED", "CLIENT_APP_RAISED_EXCEPTION", "LOAD_CLIENT_APP_EXCEPTION"),
    ],
    "Message": ["has_error", "content", "metadata", "error"],
}
FIELDS = {
    "RegisterNodeRequest": ["name", "public_key"],
    "UnregisterNodeRequest": ["node_id"],
    "StartRunRequest": ["fab"],
    "StopRunRequest": ["run_id"],
    "ListRunsRequest": ["limit"],
    "AcquireTaskRequest": ["supported_task_types"],
    "PullAppMessagesRequest": ["message_ids"],
    "PushTaskOutputRequest": ["sub_status", "details"],
    "ObjectTree": ["object_id", "children"],
    "Node": ["node_id"],
}


def flower_imports(file: Path) -> list[tuple[str, str]]:
    """Return the module and name of every import of Flower in a file, wherever the import stands."""
    imports: list[tuple[str, str]] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            imports += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imports += [(node.module or "", alias.name) for alias in node.names]
    return [(module, name) for module, name in imports if module.split(".")[0] == "flwr"]


def modules_in_strings(file: Path) -> list[str]:
    """Return the modules of Flower that a file names in strings, which may be imported later."""
    constants = [node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)]
    return [text for text in constants if isinstance(text, str) and text.startswith("flwr.")]


def test_only_the_adapter_imports_flower() -> None:
    files = [file for file in PACKAGE.rglob("*.py") if file not in EXCEPTIONS]
    assert {file: flower_imports(file) + modules_in_strings(file) for file in files} == {file: [] for file in files}


def test_tests_import_flower_in_one_place() -> None:
    files = [file for file in Path(__file__).parent.glob("*.py") if file != TEST_NAMES]
    assert {file.name: flower_imports(file) for file in files} == {file.name: [] for file in files}


@pytest.mark.parametrize("file", [ADAPTER, TEST_NAMES], ids=lambda file: file.name)
def test_every_name_exists(file: Path) -> None:
    missing = []
    for module, name in flower_imports(file):
        try:
            found = hasattr(importlib.import_module(module), name)
        except ImportError:
            found = False
        if not found:
            missing.append(f"{module}.{name}")
    assert missing == []


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_every_attribute_exists(name: str) -> None:
    adapter = importlib.import_module("polyfed.deploy.flower_adapter")
    holder = getattr(adapter, name)
    assert [attribute for attribute in ATTRIBUTES[name] if not hasattr(holder, attribute)] == []


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_exists(name: str) -> None:
    adapter = importlib.import_module("polyfed.deploy.flower_adapter")
    fields = getattr(adapter, name).DESCRIPTOR.fields_by_name
    assert [field for field in FIELDS[name] if field not in fields] == []


def test_commands_exist() -> None:
    for module, function in (flower_protocol.SUPERLINK, flower_protocol.FLOWER_SUPERNODE, flower_protocol.SUPERNODE):
        assert callable(getattr(importlib.import_module(module), function))


def test_the_loop_of_a_supernode_waits_for_messages_and_for_replies() -> None:
    """polyfed changes these two waits (deploy/quick_supernode.py)."""
    source = inspect.getsource(importlib.import_module(flower_protocol.SUPERNODE_LOOP))
    assert "import time" in source
    assert set(re.findall(r"time\.sleep\(([^)]+)\)", source)) == {"3", "0.5"}


class Clock:
    """A clock that sleeps without waiting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.waits: list[float] = []
        monkeypatch.setattr(time, "sleep", self.sleep)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def test_waits_double_until_something_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, loop_clock = Clock(monkeypatch), quick_supernode.LoopClock(lambda: None)
    for seconds in (3, 3, 3, 3, 3, 3, 3, 3, 0.5, 0.5, 3):
        loop_clock.sleep(seconds)
    assert clock.waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3, 3, 0.05, 0.1, 0.05]
    assert loop_clock.perf_counter is time.perf_counter


def test_heartbeats_are_sent_while_the_loop_waits_for_a_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[float] = []

    def send() -> None:
        sent.append(clock.now)
        raise RuntimeError("the coordinator is not there")  # Flower's own thread deals with it

    clock, loop_clock = Clock(monkeypatch), quick_supernode.LoopClock(send)
    for _ in range(20):
        loop_clock.sleep(3)
    assert sent == []  # it asks for messages instead
    began = clock.now
    for _ in range(30):
        loop_clock.sleep(0.5)
    assert 4 <= len(sent) <= 5 and sent[0] - began < 4


def test_the_changes_are_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = (flower_protocol.SUPERNODE_LOOP, flower_protocol.SUPERNODE_CONNECTION, flower_protocol.HEARTBEATS)
    loop, connection, heartbeats = map(importlib.import_module, names)
    for module, name in (
        (loop, "time"),
        (loop, "_pull_and_store_message"),
        (loop, "_push_messages"),
        (connection, "HeartbeatSender"),
        (connection, "FleetHttpClient"),
        (connection, "HEARTBEAT_DEFAULT_INTERVAL"),
        (heartbeats, "HEARTBEAT_DEFAULT_INTERVAL"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))  # restored after the test
    quick_supernode.install(quick_supernode.SessionNote(tmp_path / "session"))
    sent: list[str] = []
    vars(connection)["HeartbeatSender"](lambda: sent.append("now"))
    vars(loop)["time"]._send_heartbeat()
    assert sent == ["now"]
    intervals = [vars(module)["HEARTBEAT_DEFAULT_INTERVAL"] for module in (connection, heartbeats)]
    constants = importlib.import_module("tests.deploy.flower_names")
    assert intervals == [quick_supernode.HEARTBEAT_INTERVAL] * 2
    assert constants.HEARTBEAT_MIN_INTERVAL <= intervals[0] < constants.HEARTBEAT_DEFAULT_INTERVAL
    # several heartbeats are sent before the SuperLink takes the site as offline
    pause = (intervals[0] - constants.HEARTBEAT_CALL_TIMEOUT) * 0.9
    assert 3 * pause < constants.HEARTBEAT_PATIENCE * intervals[0]


def test_flowers_loop_receives_a_message_and_then_sends_a_reply() -> None:
    """polyfed replaces both functions, which are called with these arguments by name (deploy/quick_supernode.py)."""
    loop = importlib.import_module(flower_protocol.SUPERNODE_LOOP)
    source = inspect.getsource(loop.start_client_internal)
    for name, argument in (("_pull_and_store_message", "receive=receive"), ("_push_messages", "send=send")):
        call = source[source.index(f"{name}(") :]
        assert (
            argument in call[: call.index(")\n")]
            and argument.partition("=")[0] in inspect.signature(getattr(loop, name)).parameters
        )


def test_a_reply_that_is_left_over_does_not_delay_the_next_ones() -> None:
    """The loop of Flower would send the reply to each message after it has received the next one."""
    available = ["reply to a message of a killed run"]
    order, sent = quick_supernode.ReplyOrder(), list[str]()

    def flower_pull(*, receive: Any) -> int | None:
        received = receive()
        if received is None:
            return None
        available.append(received[0].metadata.message_id)
        return 1

    def flower_push(*, send: Any) -> None:
        reply_to = available.pop(0)
        with contextlib.suppress(RuntimeError):
            send(SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=reply_to)), None, 0.1)

    def send(message: Any, *more: Any) -> None:
        if "killed" in message.metadata.reply_to_message_id:
            raise RuntimeError("the run is finished")
        sent.append(message.metadata.reply_to_message_id)

    pull, push = order.pulling(flower_pull), order.pushing(flower_push)
    messages = [(SimpleNamespace(metadata=SimpleNamespace(message_id=name)), None) for name in ("first", "second")]
    assert pull(receive=lambda: None) is None
    for number, message in enumerate(messages, 1):
        assert pull(receive=lambda message=message: message) == 1
        push(send=send)
        assert sent == ["first", "second"][:number]


class SuperLinkClient:
    """A client in place of Flower's. Node 7 is activated, unless it is online already."""

    online, error = False, 0

    def ActivateNode(self, request: object) -> SimpleNamespace:  # noqa: N802  (Flower's name)
        if self.online or self.error:
            response = httpx.Response(409, json={"code": self.error or flower_protocol.NOT_ACTIVATED, "detail": "no"})
            raise httpx.HTTPStatusError("refused", request=httpx.Request("POST", "http://x"), response=response)
        self.online = True
        return SimpleNamespace(node_id=7)

    def DeactivateNode(self, request: Any) -> None:  # noqa: N802  (Flower's name)
        assert request.node_id == 7 and self.online
        self.online = False


def client_with(session: Path) -> Any:
    return quick_supernode.with_takeover(SuperLinkClient, quick_supernode.SessionNote(session))()


def test_the_session_of_a_killed_predecessor_is_ended(tmp_path: Path) -> None:
    session = tmp_path / "flower" / "session"
    client = client_with(session)
    assert client.ActivateNode("first").node_id == 7 and session.read_text() == "7"
    assert client.ActivateNode("after a kill").node_id == 7 and client.online
    client.DeactivateNode(SimpleNamespace(node_id=7))
    assert session.read_text() == "" and not client.online


@pytest.mark.parametrize("note", [None, "", "damaged"])
def test_without_the_note_of_a_session_a_site_that_is_online_stays_refused(tmp_path: Path, note: str | None) -> None:
    """It may run on another machine, with a copy of the key."""
    session = tmp_path / "session"
    if note is not None:
        session.write_text(note)
    client = client_with(session)
    client.online = True
    with pytest.raises(httpx.HTTPStatusError):
        client.ActivateNode("second")
    assert client.online


def test_a_session_is_not_taken_over_while_its_supernode_still_runs(tmp_path: Path) -> None:
    session = tmp_path / "session"
    running = client_with(session)
    running.ActivateNode("first")
    second = client_with(session)
    second.online = True
    with pytest.raises(httpx.HTTPStatusError):
        second.ActivateNode("second")
    assert second.online and session.read_text() == "7"


def test_a_supernode_whose_session_cannot_be_noted_works(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    client = client_with(tmp_path / "file" / "session")  # its folder cannot be created
    assert client.ActivateNode("first").node_id == 7
    client.DeactivateNode(SimpleNamespace(node_id=7))
    assert not client.online


def test_other_refusals_end_no_session(tmp_path: Path) -> None:
    session = tmp_path / "session"
    session.write_text("7")
    client = client_with(session)
    client.online, client.error = True, 401
    with pytest.raises(httpx.HTTPStatusError):
        client.ActivateNode("revoked")
    assert client.online and session.read_text() == "7"


def test_values_are_those_of_flower() -> None:
    flower = importlib.import_module("tests.deploy.flower_names")
    assert flower_protocol.PUBLIC_KEY_HEADER.decode() == flower.FLEET_HTTP_PUBLIC_KEY_HEADER
    assert flower_protocol.SIGNATURE_HEADER.decode() == flower.FLEET_HTTP_SIGNATURE_HEADER
    assert flower_protocol.TIMESTAMP_HEADER.decode() == flower.TIMESTAMP_HEADER
    assert flower_protocol.CONTENT_TYPE.decode() == flower.PROTOBUF_MEDIA_TYPE
    assert flower_protocol.MAX_CLOCK_AHEAD == flower.SYSTEM_TIME_TOLERANCE
    # Flower tolerates its drift allowance on top of this
    assert flower_protocol.MAX_CLOCK_BEHIND == flower.TIMESTAMP_TOLERANCE
    assert flower_protocol.NOT_ACTIVATED == flower.ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED
    assert flower_protocol.EXIT_KEY_INVALID == flower.ExitCode.SUPERNODE_NODE_AUTH_KEY_INVALID
    assert flower_protocol.EXIT_NO_CONNECTION == flower.ExitCode.SUPERNODE_CONNECTION_ERROR
    assert flower_protocol.EXIT_OTHER_VERSION == flower.ExitCode.RUNTIME_VERSION_INCOMPATIBLE
    telemetry = inspect.getsource(importlib.import_module("flwr.supercore.telemetry"))
    names = {flower.FLWR_DISABLE_UPDATE_CHECK, flower.FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION}
    assert flower_protocol.ENVIRONMENT.keys() - names == {"FLWR_TELEMETRY_ENABLED"}
    assert 'getenv("FLWR_TELEMETRY_ENABLED"' in telemetry


def test_the_fleet_interface_has_these_paths_and_no_others() -> None:
    """A new path is either one that sites need, which the gateway must forward, or one that it must keep blocked."""
    flower = importlib.import_module("tests.deploy.flower_names")
    paths = {route.path.encode() for route in flower.fleet_router.routes}
    assert {path for path in paths if path.startswith(FLEET)} == paths == SITE_PATHS | REGISTRATION_PATHS
