"""Runs the tasks of a site's SuperNode with the installed polyfed, and never with code that a run brings.

A SuperNode with `--isolation process` starts nothing: it keeps tasks at a local interface until a process takes them.
polyfed takes them with a secret that only this site knows. It compares the app of a task with the installed one
without unpacking it, and passes the message to a function of the installed polyfed.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

import polyfed
from polyfed.deploy.app_bundle import app_hash
from polyfed.deploy.flower_adapter import (
    AcquireTaskRequest,
    Context,
    Error,
    ErrorCode,
    Fab,
    Message,
    Node,
    ObjectPullError,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    RecordDict,
    Run,
    RuntimeHttpClient,
    Signature,
    SubStatus,
    TaskType,
    context_from_proto,
    fab_from_proto,
    heartbeat,
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    pull_and_inflate_object_from_tree,
    push_message,
    push_task_output,
    run_from_proto,
    runtime_client,
    signed_by_secret,
    signed_by_token,
)
from polyfed.errors import PolyfedError, RunError

POLL_SECONDS = 0.25  # between two questions for a task: an idle site should cost next to nothing
# All types that a coordinator can put into a SuperNode's queue, so that no foreign task stays there unanswered.
TASK_TYPES = (TaskType.CLIENT_APP, TaskType.AGENT_APP)

Handler = Callable[[Message], RecordDict]
Notify = Callable[[str], None]


class ForeignAppError(PolyfedError):
    """A run brought an app that is not the installed one. The coordinator gets the message as the reply."""


def is_installed_app(content: bytes) -> bool:
    """Return whether an app bundle from the network is the installed one, by the hash of its bytes."""
    return hashlib.sha256(content).hexdigest() == app_hash()


def create_secret(file: Path) -> bytes:
    """Write a new secret to a file that only its owner can read (`--superexec-auth-secret-file`), and return it."""
    secret = secrets.token_bytes(32)
    file.unlink(missing_ok=True)
    file.touch(mode=0o600, exist_ok=False)
    file.write_bytes(secret)
    return secret


@dataclass(frozen=True)
class TaskRunner:
    """Takes the tasks of the SuperNode at `address` (loopback) and answers each in a thread with `handler`.

    A SuperNode has one message at a time. When a new one arrives, the previous task is abandoned.
    """

    address: str
    secret: bytes
    handler: Handler
    notify: Notify
    authority: Path  # identifies the SuperNode; otherwise any process on its port could act as the coordinator

    def run(self, stop: threading.Event) -> None:
        """Run tasks until `stop` is set. Wait while the SuperNode is not running."""
        with self._client(signed_by_secret(self.secret)) as client:
            outdated = threading.Event()  # of the previous task
            while not stop.is_set():
                try:
                    token = self._acquire(client)
                except httpx.HTTPError:
                    token = None
                if token is None:
                    stop.wait(POLL_SECONDS)
                    continue
                outdated.set()
                outdated = threading.Event()
                threading.Thread(target=self._run_task, args=(token, outdated), name="task", daemon=True).start()

    def _acquire(self, client: RuntimeHttpClient) -> str | None:
        """Return the token of the next task, or None if there is no task."""
        response = client.AcquireTask(AcquireTaskRequest(supported_task_types=TASK_TYPES))
        return response.token if response.HasField("task") and response.token else None

    def _run_task(self, token: str, outdated: threading.Event) -> None:
        try:
            self._answer(token, outdated)
        except Exception as error:
            # The SuperNode stopped, abandoned the task, or forwarded something that is not a message. The coordinator
            # leaves this site out of the call, and the site continues with the next task.
            if not outdated.is_set():
                self.notify(f"a task could not be answered: {error}")

    def _answer(self, token: str, outdated: threading.Event) -> None:
        with self._client(signed_by_token(token)) as client:
            heartbeats = heartbeat(client)
            heartbeats.start()
            details, status = "the task ended without a reply", SubStatus.FAILED
            try:
                message, context, run, app = _pull_task(client, outdated)
                try:
                    if not is_installed_app(app.content):
                        raise ForeignAppError(foreign_app_message(run.fab_id, run.fab_version))
                    reply = Message(self.handler(message), reply_to=message)
                    details, status = "", SubStatus.COMPLETED
                except ForeignAppError as refusal:
                    details = str(refusal)
                    self.notify(details)
                    reply = Message(Error(ErrorCode.INVALID_FAB, details), reply_to=message)
                except Exception as error:
                    kind = "" if isinstance(error, PolyfedError) else f"{type(error).__name__}: "
                    details = f"{kind}{error}"
                    reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details), reply_to=message)
                push_message(client, reply, context)
            finally:
                # no state is stored in Flower's context
                push_task_output(client, None, status, details)
                heartbeats.stop()

    def _client(self, signature: Signature) -> RuntimeHttpClient:
        return runtime_client(self.address, self.authority, "flwr-clientapp", signature)


def foreign_app_message(name: str, version: str) -> str:
    """Return the reply of a site to a run whose app is not the installed one."""
    return (
        f"the run brings the app '{name}' {version}, which is not the installed polyfed {polyfed.__version__}; "
        "this site runs no code from the network"
    )


def _pull_task(client: RuntimeHttpClient, outdated: threading.Event) -> tuple[Message, Context, Run, Fab]:
    """Return the message of a task with its context, run and app.

    The pieces of a message never arrive if its run has ended in the meantime. Flower would wait two hours for them;
    this stops as soon as the task is outdated.
    """
    task = client.PullTaskInput(PullTaskInputRequest())
    context = context_from_proto(task.context)
    response = client.PullMessages(PullAppMessagesRequest())
    if not response.messages_list:
        raise RunError("the SuperNode has no message for its task")
    tree, node = response.message_object_trees[0], Node(node_id=context.node_id)
    pull_piece = make_pull_object_fn_protobuf(client.PullObject, node, context.run_id)

    def pull_unless_outdated(object_id: str) -> bytes:
        if outdated.is_set():
            raise ObjectPullError(object_id, "the task is outdated")
        return pull_piece(object_id)

    message = pull_and_inflate_object_from_tree(
        tree,
        pull_unless_outdated,
        make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, context.run_id),
        return_type=Message,
        max_tries_per_object=None,
        initial_backoff=0.05,
        backoff_cap=0.5,
    )
    message.metadata.__dict__["_message_id"] = tree.object_id  # Flower does not send it with the message
    return message, context, run_from_proto(task.run), fab_from_proto(task.fab)
