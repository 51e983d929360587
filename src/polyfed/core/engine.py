"""The engine interface: run a call on some clients. An engine never decodes a payload.

- Answers come in the order of the tasks.
- The message for all clients is passed once, apart from the messages for single clients.
- A task names the state version that its client starts from: the number of the call that produced it. A repeated task
  therefore gives the same answer and the same state, on any worker, whichever process died before.
- A client's new state is stored before its answer is returned.
- Failures are values, not exceptions. Several steps may run in one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from polyfed.errors import PayloadError

INITIAL = 0  # version of a client's initial state, before its first call


@dataclass(frozen=True)
class Call:
    """One call of the server: steps to run in sequence. A call without steps is an evaluation of `measures`.

    With steps and measures, clients are evaluated after the steps, and the answers have both replies.
    """

    number: int
    round: int
    steps: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()  # names of the steps in random streams: 'train', then 'train.2' in the same round
    measures: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()  # of an evaluation, besides accuracy


@dataclass(frozen=True)
class Task:
    """A call for one client."""

    client: str
    base: int  # version of the state to start from
    own: bytes = b""  # the client's own message; empty: none
    discard: tuple[int, ...] = ()  # versions that are no longer needed


@dataclass(frozen=True)
class TrainingStats:
    """Training of one step: mean loss of the task, number of samples and of optimiser steps."""

    loss: float
    samples: int
    steps: int


@dataclass(frozen=True)
class Failure:
    """Reason why there is no reply."""

    # refused: the client refused the message; rejected: the server rejected the reply
    kind: Literal["raised", "died", "timeout", "refused", "rejected", "unavailable", "storage", "memory"]
    message: str
    detail: str = ""  # the client's traceback


def rejection(error: Exception) -> Failure:
    """Return the failure of a client whose reply could not be read: any error that reading it provoked."""
    known = isinstance(error, PayloadError)
    return Failure("rejected", str(error) if known else f"the reply is malformed: {type(error).__name__}")


@dataclass(frozen=True)
class Answer:
    """Result of one task: an encoded reply or a failure."""

    client: str
    frame: bytes = b""
    failure: Failure | None = None
    digest: str = ""  # of the client's new state
    seconds: float = 0.0  # without the evaluation after steps
    trained: tuple[TrainingStats, ...] = ()
    notes: tuple[str, ...] = ()  # for the user
    evaluation: bytes = b""  # the encoded reply of the evaluation after steps; empty: none, or it failed
    evaluation_seconds: float = 0.0


class Engine(Protocol):
    """Runs calls on clients. Message contents, costs and failures are handled by the door."""

    @property
    def concurrent(self) -> bool:
        """Whether calls run in other processes, so that this process can continue meanwhile."""
        ...

    @property
    def evaluates_after_steps(self) -> bool:
        """Whether a call may have steps and measures, so that a client is evaluated in the visit that trained it."""
        ...

    @property
    def trusted(self) -> bool:
        """Whether messages stay between processes of this run. Those of sites cross a trust boundary."""
        ...

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        """Yield answers in the order of `tasks`."""
        ...

    def peak_memory(self) -> int:
        """Return the peak resident bytes of the processes that hold clients, without this one."""
        ...

    def close(self) -> None: ...


FrameBytes = Sequence[bytes | memoryview]  # a frame in parts, which need not be joined before they are written


class StateStore(Protocol):
    """Storage of client states, by client and version."""

    def write(self, client: str, version: int, frame: FrameBytes, discard: Sequence[int] = ()) -> None:
        """Store a state, given in parts. The versions `discard` of this client are no longer needed."""
        ...

    def read(self, client: str, version: int) -> bytes: ...
