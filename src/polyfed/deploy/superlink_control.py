"""Client of the SuperLink's control interface, which answers on loopback only."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import httpx

from polyfed.deploy.flower_adapter import (
    ControlHttpClient,
    Fab,
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    RuntimeVersionHttpInterceptor,
    StartRunRequest,
    Status,
    StopRunRequest,
    UnregisterNodeRequest,
    fab_to_proto,
)
from polyfed.errors import RunError

NEWEST_RUNS = 10  # in which runs of a killed coordinator are searched; there is one at most

Request = TypeVar("Request")
Response = TypeVar("Response")


@dataclass(frozen=True)
class RegisteredNode:
    """A site as the SuperLink lists it."""

    id: int
    name: str
    public_key: bytes
    online: bool


class ControlClient:
    """Requests to the SuperLink at `address`.

    `authority` is the file of the authority that signed the SuperLink's certificate, or None to connect without TLS.
    """

    def __init__(self, address: str, authority: Path | None) -> None:
        self.address = address
        self._client = ControlHttpClient.from_server_address(
            server_address=address,
            insecure=authority is None,
            root_certificates=None if authority is None else authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def nodes(self) -> list[RegisteredNode]:
        """Return all registered nodes, sorted by name."""
        response = self._send(self._client.ListNodes, ListNodesRequest())
        nodes = [
            RegisteredNode(node.node_id, node.name, bytes(node.public_key), node.status == "online")
            for node in response.nodes_info
            if node.status != "unregistered"
        ]
        return sorted(nodes, key=lambda node: node.name)

    def register(self, name: str, public_key: bytes) -> int:
        """Register a key under a name. Return Flower's id of the node."""
        return self._send(self._client.RegisterNode, RegisterNodeRequest(public_key=public_key, name=name)).node_id

    def unregister(self, node_id: int) -> None:
        """Remove a node. Its key is refused from then on."""
        self._send(self._client.UnregisterNode, UnregisterNodeRequest(node_id=node_id))

    def start_run(self, app: bytes) -> int:
        """Start a run with an app bundle. Return the run's id."""
        fab = Fab(hashlib.sha256(app).hexdigest(), app, {})
        response = self._send(self._client.StartRun, StartRunRequest(fab=fab_to_proto(fab)))
        if not response.HasField("run_id"):
            raise RunError("the SuperLink did not start a run; see its log")
        return response.run_id

    def stop_unfinished_runs(self) -> None:
        """Stop runs whose coordinator or SuperLink was killed.

        A site that waits for a message of such a run would do so until the SuperLink ends it, after a minute.
        """
        for run_id, run in self._send(self._client.ListRuns, ListRunsRequest(limit=NEWEST_RUNS)).run_dict.items():
            if run.status.status != Status.FINISHED:
                with contextlib.suppress(RunError):  # it may have finished just now
                    self._send(self._client.StopRun, StopRunRequest(run_id=run_id))

    def _send(self, method: Callable[[Request], Response], request: Request) -> Response:
        try:
            return method(request)
        except httpx.HTTPStatusError as error:
            raise RunError(
                f"the SuperLink at {self.address} refused: {error.response.text or error.response.status_code}"
            ) from None
        except httpx.HTTPError as error:
            raise RunError(f"the SuperLink at {self.address} cannot be reached: {error}") from None
