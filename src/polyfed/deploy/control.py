"""The coordinator's way to its own SuperLink: the control interface, which answers on loopback only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import httpx

from polyfed.deploy.flower_adapter import (
    ControlHttpClient,
    Fab,
    ListNodesRequest,
    RegisterNodeRequest,
    RuntimeVersionHttpInterceptor,
    StartRunRequest,
    UnregisterNodeRequest,
    fab_to_proto,
    user_config_to_proto,
)
from polyfed.errors import RunError

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Node:
    """A site as the SuperLink knows it."""

    id: int
    name: str
    public_key: bytes
    online: bool


class Control:
    """Requests to the SuperLink at `address`, whose certificate `authority` (a file) signed; None: without TLS."""

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

    def nodes(self) -> list[Node]:
        """Everybody who is registered now, by name."""
        listed = self._ask(self._client.ListNodes, ListNodesRequest()).nodes_info
        found = [
            Node(node.node_id, node.name, bytes(node.public_key), node.status == "online")
            for node in listed
            if node.status != "unregistered"
        ]
        return sorted(found, key=lambda node: node.name)

    def register(self, name: str, public_key: bytes) -> int:
        """Let a key in under a name; gives Flower's id of it."""
        return self._ask(self._client.RegisterNode, RegisterNodeRequest(public_key=public_key, name=name)).node_id

    def unregister(self, node: int) -> None:
        """From now on its key is refused."""
        self._ask(self._client.UnregisterNode, UnregisterNodeRequest(node_id=node))

    def start_run(self, app: bytes, settings: Mapping[str, str | int | float | bool] | None = None) -> int:
        """Begin a run with an app (the bytes of a FAB); gives the run's id."""
        bundle = Fab(hashlib.sha256(app).hexdigest(), app, {})
        request = StartRunRequest(
            fab=fab_to_proto(bundle), override_config=user_config_to_proto(dict(settings or {}))
        )
        answer = self._ask(self._client.StartRun, request)
        if not answer.HasField("run_id"):
            raise RunError("the SuperLink did not begin a run; its log says why")
        return answer.run_id

    def _ask(self, request: Callable[[Asked], Answer], message: Asked) -> Answer:
        try:
            return request(message)
        except httpx.HTTPStatusError as error:
            raise RunError(
                f"the SuperLink at {self.address} refused: {error.response.text or error.response.status_code}"
            ) from None
        except httpx.HTTPError as error:
            raise RunError(f"the SuperLink at {self.address} cannot be reached: {error}") from None
