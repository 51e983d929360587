"""The ServerApp's task of a Flower run, taken by the coordinator itself instead of by a process that Flower starts.

The SuperLink is started with `--isolation process`, which leaves it to others to take this task; a secret keeps
everybody else on the machine from doing so. The same way, `pinning` takes the tasks of a site's SuperNode.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.common.constant import SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.serverapp.grid import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from polyfed.deploy.reply_download import Replies
from polyfed.errors import RunError

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
COMPONENT = "flwr-serverapp"


class PatientGrid(HttpGrid):
    """Flower's grid, over a client that raises what it meets: Flower's own sends this process a signal instead."""

    def use(self, client: RuntimeHttpClient, run: Run) -> None:
        self._client = client
        self.set_run(run)

    def replies(self, limit: int) -> Replies:
        """A way to sites' replies that neither waits nor raises for what one of them sent."""
        return Replies(self._runtime_client, self.node, self.run.run_id, limit)


@dataclass(frozen=True)
class ServerTask:
    """Where the task is taken. `authority` is the certificate file by which to know the SuperLink; none: no TLS."""

    address: str
    secret: bytes
    authority: Path | None

    @contextlib.contextmanager
    def grid(self, run: int, seconds: float = 30.0) -> Iterator[Grid]:
        """Be the ServerApp of a run that was just begun: its sites, as long as this lasts."""
        token = self._token(run, seconds)
        client = self._client(RuntimeTokenHttpInterceptor(token))
        got = client.PullTaskInput(PullTaskInputRequest())
        grid = PatientGrid(self.address, insecure=self.authority is None, token=token)
        grid.use(client, run_from_proto(got.run))
        TaskIdentity.task_id, TaskIdentity.run_id = got.task_id, got.run.run_id
        TaskIdentity.node_id = got.context.node_id  # Flower's messages take their sender from here

        def beat() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
                return True
            return False

        heart = HeartbeatSender(beat)
        heart.start()
        outcome = SubStatus.FAILED
        try:
            yield grid
            outcome = SubStatus.COMPLETED
        finally:
            with contextlib.suppress(httpx.HTTPError):
                client.PushTaskOutput(PushTaskOutputRequest(sub_status=outcome, details=""))
            heart.stop()
            client.close()

    def _token(self, run: int, seconds: float) -> str:
        signed = SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods={ACQUIRE})
        deadline = time.monotonic() + seconds
        with contextlib.closing(self._client(signed)) as client:
            while time.monotonic() < deadline:
                got = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
                if got.token and got.task.run_id == run:
                    return str(got.token)
                time.sleep(0.1)  # a task of an earlier run, which was killed, is taken and left to expire
        raise RunError(f"the SuperLink did not hand over the task of its run within {seconds:g} seconds")

    def _client(self, signs: RuntimeTokenHttpInterceptor | SuperExecAuthHttpInterceptor) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            self.address,
            self.authority is None,
            None if self.authority is None else self.authority.read_bytes(),
            [RuntimeVersionHttpInterceptor(component_name=COMPONENT), signs],
        )
