"""Names of Flower that only tests use. All other names come from `polyfed.deploy.flower_adapter`."""

from __future__ import annotations

from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.cli.build import build_fab_from_disk, build_fab_from_files
from flwr.common.constant import (
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION,
    HEARTBEAT_CALL_TIMEOUT,
    HEARTBEAT_DEFAULT_INTERVAL,
    HEARTBEAT_MIN_INTERVAL,
    HEARTBEAT_PATIENCE,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
)
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    PullObjectRequest,
    PullObjectResponse,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    FLWR_DISABLE_UPDATE_CHECK,
)
from flwr.supercore.error.base import ApiErrorCode
from flwr.supercore.exit.exit_code import ExitCode
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_ref import load_app
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, uses_nist_ec_curve
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.superlink.routers.fleet.router import router as fleet_router

__all__ = [
    "HEARTBEAT_PATIENCE",
    "HEARTBEAT_MIN_INTERVAL",
    "HEARTBEAT_DEFAULT_INTERVAL",
    "HEARTBEAT_CALL_TIMEOUT",
    "ApiErrorCode",
    "ConfirmMessageReceivedRequest",
    "ConfirmMessageReceivedResponse",
    "ExitCode",
    "FLEET_HTTP_PUBLIC_KEY_HEADER",
    "FLEET_HTTP_SIGNATURE_HEADER",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION",
    "FLWR_DISABLE_UPDATE_CHECK",
    "Metadata",
    "NodeInfo",
    "PROTOBUF_MEDIA_TYPE",
    "ProtobufClientInterceptor",
    "PullAppMessagesResponse",
    "PullObjectRequest",
    "PullObjectResponse",
    "SYSTEM_TIME_TOLERANCE",
    "TIMESTAMP_HEADER",
    "TIMESTAMP_TOLERANCE",
    "build_fab_from_disk",
    "build_fab_from_files",
    "fleet_router",
    "get_all_nested_objects",
    "get_object_tree",
    "load_app",
    "make_message",
    "message_to_proto",
    "public_key_to_bytes",
    "uses_nist_ec_curve",
]
