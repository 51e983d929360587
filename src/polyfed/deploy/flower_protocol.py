"""Values of Flower's protocol that polyfed uses without importing Flower, so that small commands start fast.

`tests/deploy/test_flower_adapter.py` compares them with the installed Flower.
"""

from __future__ import annotations

VERSION = "1.41"  # release that coordinator and sites need

# Commands, as module and function.
SUPERLINK = ("flwr.superlink.cli.flower_superlink", "flower_superlink")
FLOWER_SUPERNODE = ("flwr.supernode.cli.flower_supernode", "flower_supernode")
SUPERNODE = (
    "polyfed.deploy.quick_supernode",
    "flower_supernode",
)  # with changes of polyfed
# Modules of a SuperNode: its loop, which waits for messages and replies, its connection, and its heartbeats.
SUPERNODE_LOOP = "flwr.supernode.start_client_internal"
SUPERNODE_CONNECTION = "flwr.supernode.fleet_http_connection"
HEARTBEATS = "flwr.supercore.heartbeat"
FLEET_MESSAGES = "flwr.proto.fleet_pb2"  # messages of the fleet interface

# Disables telemetry, the check for updates and the installation of packages at run time.
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}

# The fleet interface of a SuperLink, which SuperNodes use.
FLEET = b"/v1/fleet/"
ACTIVATION = "/v1/fleet/activate-node"
SITE_PATHS = frozenset(
    FLEET + name
    for name in (
        b"activate-node",
        b"deactivate-node",
        b"send-node-heartbeat",
        b"pull-messages",
        b"push-messages",
        b"get-run",
        b"get-fab",
        b"push-object",
        b"pull-object",
        b"confirm-message-received",
    )
)
REGISTRATION_PATHS = frozenset({FLEET + b"register-node", FLEET + b"unregister-node"})
# A request of a site has the time, signed with the site's key (ECDSA, SHA-256). The body is not signed.
PUBLIC_KEY_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"
CONTENT_TYPE = b"application/protobuf"

# The method that a process without a token calls to take a task.
ACQUIRE_TASK = "/flwr.proto.Runtime/AcquireTask"

# Seconds by which the time of a signed request may be ahead of the SuperLink's clock, and behind it.
MAX_CLOCK_AHEAD, MAX_CLOCK_BEHIND = 5.0, 300.0

# The error of a SuperLink that still lists the key of a starting SuperNode as online.
NOT_ACTIVATED = 2004

# Exit codes that a SuperNode prints.
EXIT_KEY_INVALID, EXIT_NO_CONNECTION, EXIT_OTHER_VERSION = 302, 305, 606
