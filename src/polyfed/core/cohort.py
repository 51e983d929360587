"""The clients of a round. `call` is the only way from server to client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from polyfed.core.door import Door
from polyfed.core.method import Outgoing
from polyfed.core.payload import Payload, Value
from polyfed.core.step import Step


class Cohort:
    """Some clients, in a fixed order."""

    def __init__(self, door: Door, ids: tuple[str, ...], measure: Callable[[tuple[str, ...]], None]) -> None:
        self.ids = ids
        self._door = door
        self._measure = measure

    def __len__(self) -> int:
        return len(self.ids)

    def stream(
        self,
        *steps: Step,
        shared: Mapping[str, Value] | None = None,
        each: Mapping[str, Mapping[str, Value]] | None = None,
        out: Outgoing | None = None,
    ) -> Iterator[tuple[str, Payload]]:
        """Run steps at every client and yield the replies one at a time, in client order. Failures are left out.

        `shared` goes to all clients, `each` to single ones. Several steps run in sequence at the client, receive the
        same message and send one reply. `out` is a prepared message, which the keywords extend.
        """
        names = tuple(step.__name__ for step in steps)
        out = out or Outgoing()
        own = {k: {**out.each.get(k, {}), **each.get(k, {})} for k in {**out.each, **each}} if each else out.each
        return self._door.call(names, self.ids, Outgoing({**out.shared, **(shared or {})}, own))

    def call(
        self,
        *steps: Step,
        shared: Mapping[str, Value] | None = None,
        each: Mapping[str, Mapping[str, Value]] | None = None,
        out: Outgoing | None = None,
    ) -> dict[str, Payload]:
        """Run steps at every client and return the replies in client order. Failures are left out."""
        return dict(self.stream(*steps, shared=shared, each=each, out=out))

    def measure(self, *measures: str) -> None:
        """Evaluate now instead of at the end of the round, if this round is evaluated.

        Use it if 'personal' and 'global' accuracy belong to different moments of a round, or if the server trains
        afterwards: with most engines, the server continues while clients are evaluated.
        """
        self._measure(measures)
