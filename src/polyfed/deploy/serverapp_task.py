"""The ServerApp task of a Flower run. The coordinator takes it itself; Flower starts no process for it.

The SuperLink runs with `--isolation process`, which leaves the task to other processes. A secret keeps other users of
the machine from taking it. `supernode_tasks` does the same for the tasks of a site's SuperNode.
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
from polyfed.deploy.reply_download import ReplyDownloader
from polyfed.errors import RunError


class RaisingGrid(HttpGrid):
    """Flower's grid over a client that raises its errors. Flower's own client sends this process a signal instead."""

    def connect(self, client: RuntimeHttpClient, run: Run) -> None:
        self._client = client
        self.set_run(run)

    def reply_downloader(self, limit: int) -> ReplyDownloader:
        """Return a downloader of replies, of up to `limit` bytes each."""
        return ReplyDownloader(self._runtime_client, self.node, self.run.run_id, limit)


@dataclass(frozen=True)
class ServerAppTask:
    """The SuperLink that holds the task, and the secret that is needed to take it.

    `authority` is the file of the authority that signed the SuperLink's certificate, or None to connect without TLS.
    """

    address: str
    secret: bytes
    authority: Path | None

    @contextlib.contextmanager
    def grid(self, run: int, timeout: float = 30.0) -> Iterator[Grid]:
        """Act as the ServerApp of a run that was just started: yield the grid of its sites."""
        token = self._acquire(run, timeout)
        client = self._client(signed_by_token(token))
        task = client.PullTaskInput(PullTaskInputRequest())
        grid = RaisingGrid(self.address, insecure=self.authority is None, token=token)
        grid.connect(client, run_from_proto(task.run))
        TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
        TaskIdentity.node_id = task.context.node_id  # Flower reads the sender of its messages from here
        heartbeats = heartbeat(client)
        heartbeats.start()
        status = SubStatus.FAILED
        try:
            yield grid
            status = SubStatus.COMPLETED
        finally:
            with contextlib.suppress(httpx.HTTPError):
                client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))
            heartbeats.stop()
            client.close()

    def _acquire(self, run: int, timeout: float) -> str:
        """Take the task of a run. Return its token."""
        deadline = time.monotonic() + timeout
        with contextlib.closing(self._client(signed_by_secret(self.secret))) as client:
            while time.monotonic() < deadline:
                response = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
                if response.token and response.task.run_id == run:
                    return str(response.token)
                time.sleep(0.1)  # tasks of earlier runs, which were killed, are taken and left to expire
        raise RunError(f"the SuperLink did not hand over the task of its run within {timeout:g} seconds")

    def _client(self, signature: Signature) -> RuntimeHttpClient:
        return runtime_client(self.address, self.authority, "flwr-serverapp", signature)
