"""What an engine must answer: "run this call on these clients with these bytes". It never looks inside a payload.

- Clients have stable names; answers come in the order of the tasks.
- What goes to all travels apart from what goes to each.
- A call has a number. A task names the state its client must start from (the number of the call that led to it), so a
  repeated task gives the same answer and the same state, on any worker, whatever died in between.
- A client's new state is committed before its answer leaves.
- Failures are values. Several steps may run in one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

INITIAL = 0  # the state of a client that was never called: made from its description alone


@dataclass(frozen=True)
class Call:
    """One call of the server: steps to run, in order. Without steps it is an evaluation of `measures`."""

    number: int
    round: int
    steps: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()  # the steps' names in random streams: 'train', then 'train.2' in the same round
    measures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """A call for one client."""

    client: str
    base: int  # the state to start from
    own: bytes = b""  # its own payload; empty for none
    discard: tuple[int, ...] = ()  # older states that nobody needs any more


@dataclass(frozen=True)
class TrainingStats:
    """What a step trained: the mean of the task's own loss, over how many samples, in how many steps."""

    loss: float
    samples: int
    steps: int


@dataclass(frozen=True)
class Failure:
    """Why there is no reply."""

    kind: Literal["raised", "died", "timeout", "refused", "unavailable", "storage"]
    message: str
    detail: str = ""  # the client's traceback, for the record


@dataclass(frozen=True)
class Answer:
    """What came back for one task: a frame or a failure, and the facts about it."""

    client: str
    frame: bytes = b""
    failure: Failure | None = None
    digest: str = ""  # of the client's new state
    seconds: float = 0.0
    trained: tuple[TrainingStats, ...] = ()


class Engine(Protocol):
    """Runs calls. Everything else (what is in them, what they cost, what to do about failures) is the door's."""

    @property
    def concurrent(self) -> bool:
        """Whether a call runs outside of this process, so that this process can do something else meanwhile."""
        ...

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        """Answers in the order of `tasks`, one at a time."""
        ...

    def peak_memory(self) -> int:
        """Peak resident bytes of the processes that hold clients, without this one."""
        ...

    def close(self) -> None: ...


class StateStore(Protocol):
    """Where states are kept, by client and the number of the call that led to them."""

    def write(self, client: str, version: int, frame: bytes) -> None: ...

    def read(self, client: str, version: int) -> bytes: ...

    def discard(self, client: str, versions: Sequence[int]) -> None: ...
