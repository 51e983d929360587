"""Sites run only the app that they have installed: polyfed takes a SuperNode's tasks, and never code from the wire.

A SuperNode with `--isolation process` starts nothing: it keeps tasks at a local interface until somebody takes them.
Here they are taken with a secret that only this site knows, the app that came with a task is compared with the
installed one without being unpacked, and the message is given to a function of the installed polyfed.
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
from polyfed.deploy.app_bundle import bundle_hash
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

POLL = 0.1
# Everything that a coordinator can put into a SuperNode's queue, so that nothing foreign stays there unanswered.
TASKS = (TaskType.CLIENT_APP, TaskType.AGENT_APP)

Handle = Callable[[Message], RecordDict]
Say = Callable[[str], None]


class ForeignAppError(PolyfedError):
    """A run brought an app that is not the installed one; the coordinator gets the sentence as the reply."""


def is_installed_app(content: bytes) -> bool:
    """Whether an app that came over the wire is the installed one, by its bytes; what its sender says counts not."""
    return hashlib.sha256(content).hexdigest() == bundle_hash()


def new_secret(file: Path) -> bytes:
    """A fresh secret in a file that only its owner may read (`--superexec-auth-secret-file`)."""
    secret = secrets.token_bytes(32)
    file.unlink(missing_ok=True)
    file.touch(mode=0o600, exist_ok=False)
    file.write_bytes(secret)
    return secret


@dataclass(frozen=True)
class Taker:
    """Takes the tasks of the SuperNode at `address` (loopback) and answers them with `handle`, each in a thread.

    A SuperNode has one message at a time; when it has another, whatever was left of the one before is given up.
    """

    address: str
    secret: bytes
    handle: Handle
    refused: Say
    authority: Path  # by which to know the SuperNode: else whoever gets its port could act as the coordinator

    def run(self, stop: threading.Event) -> None:
        """Until `stop`; a SuperNode that is away is waited for."""
        with self._client(signed_by_secret(self.secret)) as client:
            outdated = threading.Event()  # of the task before
            while not stop.is_set():
                try:
                    token = self._acquired(client)
                except httpx.HTTPError:
                    token = None
                if token is None:
                    stop.wait(POLL)
                    continue
                outdated.set()
                outdated = threading.Event()
                threading.Thread(target=self._try, args=(token, outdated), name="task", daemon=True).start()

    def _acquired(self, client: RuntimeHttpClient) -> str | None:
        """The token of the next task, if there is one."""
        answer = client.AcquireTask(AcquireTaskRequest(supported_task_types=TASKS))
        return answer.token if answer.HasField("task") and answer.token else None

    def _try(self, token: str, outdated: threading.Event) -> None:
        try:
            self._answer(token, outdated)
        except Exception as error:
            # the SuperNode went away, gave the task up, or passed on what is no message: the coordinator leaves
            # this site out of the call, and the next task may be better
            if not outdated.is_set():
                self.refused(f"a task could not be answered: {error}")

    def _answer(self, token: str, outdated: threading.Event) -> None:
        with self._client(signed_by_token(token)) as client:
            beating = heartbeat(client)
            beating.start()
            details, ended = "the task ended without a reply", SubStatus.FAILED
            try:
                message, context, run, app = _pulled(client, outdated)
                try:
                    if not is_installed_app(app.content):
                        raise ForeignAppError(foreign(run.fab_id, run.fab_version))
                    reply = Message(self.handle(message), reply_to=message)
                    details, ended = "", SubStatus.COMPLETED
                except ForeignAppError as refusal:
                    details = str(refusal)
                    self.refused(details)
                    reply = Message(Error(ErrorCode.INVALID_FAB, details), reply_to=message)
                except Exception as error:
                    kind = "" if isinstance(error, PolyfedError) else f"{type(error).__name__}: "
                    details = f"{kind}{error}"
                    reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details), reply_to=message)
                push_message(client, reply, context)
            finally:
                # nothing is kept in Flower's context
                push_task_output(client, None, ended, details)
                beating.stop()

    def _client(self, signature: Signature) -> RuntimeHttpClient:
        return runtime_client(self.address, self.authority, "flwr-clientapp", signature)


def foreign(name: str, version: str) -> str:
    """What a site says to a run whose app is not the installed one."""
    return (
        f"the run brings the app '{name}' {version}, which is not the installed polyfed {polyfed.__version__}; "
        "this site runs no code from the wire"
    )


def _pulled(client: RuntimeHttpClient, outdated: threading.Event) -> tuple[Message, Context, Run, Fab]:
    """The message of a task and what belongs to it. Its parts come as the SuperNode gets them.

    The parts of a message never come if its run ended meanwhile; Flower would wait for them for two hours.
    """
    got = client.PullTaskInput(PullTaskInputRequest())
    context = context_from_proto(got.context)
    pulled = client.PullMessages(PullAppMessagesRequest())
    if not pulled.messages_list:
        raise RunError("the SuperNode has no message for its task")
    tree, node = pulled.message_object_trees[0], Node(node_id=context.node_id)
    part = make_pull_object_fn_protobuf(client.PullObject, node, context.run_id)

    def pull(number: str) -> bytes:
        if outdated.is_set():
            raise ObjectPullError(number, "the task is outdated")
        return part(number)

    message = pull_and_inflate_object_from_tree(
        tree,
        pull,
        make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, context.run_id),
        return_type=Message,
        max_tries_per_object=None,
        initial_backoff=0.05,
        backoff_cap=0.5,
    )
    message.metadata.__dict__["_message_id"] = tree.object_id  # which Flower does not send along
    return message, context, run_from_proto(got.run), fab_from_proto(got.fab)
