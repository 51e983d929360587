"""Every name of Flower that polyfed uses. No other module of this package imports `flwr`.

Most of them are internals, which a new release of Flower may move or change. `tests/deploy/test_flower_adapter.py`
imports each name and reports those that are missing. Values of Flower that polyfed uses without importing it (paths,
exit codes) are in `flower_protocol`.
"""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

# public interface: messages and apps
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

# internals: wire formats
from flwr.common.constant import ErrorCode, Status, SubStatus
from flwr.common.serde import (
    context_from_proto,
    fab_from_proto,
    fab_to_proto,
    run_from_proto,
)
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.serverapp import Grid, ServerApp

# internals: clients of SuperLink and SuperNode, and tasks
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender

# internals: large messages, which travel in pieces
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflatable_class_registry,
    inflate_object_from_contents,
    pull_and_inflate_object_from_tree,
)
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

from polyfed.deploy.flower_protocol import ACQUIRE_TASK

if TYPE_CHECKING:
    from flwr.superlink.grid.http_grid import HttpGrid
    from flwr.supernode.runtime.run_clientapp import push_message, push_task_output

# Names that take a second to import (a database, a web framework) and that few processes need.
LAZY = {
    "HttpGrid": "flwr.superlink.grid.http_grid",
    "push_message": "flwr.supernode.runtime.run_clientapp",
    "push_task_output": "flwr.supernode.runtime.run_clientapp",
}

__all__ = [
    "AcquireTaskRequest",
    "Array",
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Context",
    "ControlHttpClient",
    "Error",
    "ErrorCode",
    "Fab",
    "Grid",
    "HeartbeatSender",
    "HttpGrid",
    "ListNodesRequest",
    "ListRunsRequest",
    "Message",
    "Node",
    "ObjectPullError",
    "ObjectTree",
    "ObjectUnavailableError",
    "PullAppMessagesRequest",
    "PullTaskInputRequest",
    "PushTaskOutputRequest",
    "RecordDict",
    "RegisterNodeRequest",
    "Run",
    "RuntimeHttpClient",
    "RuntimeVersionHttpInterceptor",
    "ServerApp",
    "StartRunRequest",
    "Status",
    "StopRunRequest",
    "SubStatus",
    "TaskIdentity",
    "TaskType",
    "UnregisterNodeRequest",
    "context_from_proto",
    "fab_from_proto",
    "fab_to_proto",
    "get_object_body",
    "get_object_head_values_from_object_content",
    "heartbeat",
    "inflatable_class_registry",
    "inflate_object_from_contents",
    "iterate_object_tree",
    "make_confirm_message_received_fn_protobuf",
    "make_pull_object_fn_protobuf",
    "pull_and_inflate_object_from_tree",
    "push_message",
    "push_task_output",
    "run_from_proto",
    "runtime_client",
    "signed_by_secret",
    "signed_by_token",
]


def __getattr__(name: str) -> Any:
    """Import a name of `LAZY` when it is first used."""
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(LAZY[name]), name)


Signature = RuntimeTokenHttpInterceptor | SuperExecAuthHttpInterceptor


def signed_by_token(token: str) -> Signature:
    """Sign requests with the token of a task."""
    return RuntimeTokenHttpInterceptor(token)


def signed_by_secret(secret: bytes) -> Signature:
    """Sign requests for tasks with the secret of a SuperLink or SuperNode."""
    return SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE_TASK})


def runtime_client(address: str, authority: Path | None, component: str, signature: Signature) -> RuntimeHttpClient:
    """Return a client of the runtime interface at `address`, over which processes take tasks and exchange messages.

    `authority` is the file of the certificate authority, or None to connect without TLS. Flower's name of this
    process is `component`.
    """
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=authority is None,
        root_certificates=None if authority is None else authority.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name=component), signature],
    )


def heartbeat(client: RuntimeHttpClient) -> HeartbeatSender:
    """Return a sender of heartbeats for a task. Flower's own would end this process if the task no longer exists."""

    def send() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            return True
        return False

    return HeartbeatSender(send)
