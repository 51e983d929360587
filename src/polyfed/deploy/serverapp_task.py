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

from polyfed.deploy.flower_adapter import (
    AcquireTaskRequest,
    Grid,
    HttpGrid,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    Run,
    RuntimeHttpClient,
    Signature,
    SubStatus,
    TaskIdentity,
    TaskType,
    heartbeat,
    run_from_proto,
    runtime_client,
    signed_by_secret,
    signed_by_token,
)
from polyfed.deploy.reply_download import Replies
from polyfed.errors import RunError


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
        client = self._client(signed_by_token(token))
        got = client.PullTaskInput(PullTaskInputRequest())
        grid = PatientGrid(self.address, insecure=self.authority is None, token=token)
        grid.use(client, run_from_proto(got.run))
        TaskIdentity.task_id, TaskIdentity.run_id = got.task_id, got.run.run_id
        TaskIdentity.node_id = got.context.node_id  # Flower's messages take their sender from here

        heart = heartbeat(client)
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
        deadline = time.monotonic() + seconds
        with contextlib.closing(self._client(signed_by_secret(self.secret))) as client:
            while time.monotonic() < deadline:
                got = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
                if got.token and got.task.run_id == run:
                    return str(got.token)
                time.sleep(0.1)  # a task of an earlier run, which was killed, is taken and left to expire
        raise RunError(f"the SuperLink did not hand over the task of its run within {seconds:g} seconds")

    def _client(self, signature: Signature) -> RuntimeHttpClient:
        return runtime_client(self.address, self.authority, "flwr-serverapp", signature)
