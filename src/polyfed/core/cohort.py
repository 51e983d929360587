"""The clients of a round, as a method sees them. `call` is the only door between server and client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from polyfed.core.door import Door
from polyfed.core.method import Outgoing
from polyfed.core.payload import Payload, Value
from polyfed.core.step import Step


class Cohort:
    """Some clients, by name, in their fixed order."""

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
        """Run steps at every client and yield the replies one at a time, in client order, failures left out.

        Several steps run one after the other at the client, with the same message, and answer together. `out` is
        what another function has put together to go to all and to each; the keywords come on top of it.
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
        """Run steps at every client; all replies, in client order, failures left out."""
        return dict(self.stream(*steps, shared=shared, each=each, out=out))

    def measure(self, *measures: str) -> None:
        """Evaluate here rather than at the end of the round, where this round is evaluated at all.

        For methods whose 'personal' and 'global' accuracies belong to different moments of a round, and for those
        that train on the server: what follows here runs while the clients are evaluated.
        """
        self._measure(measures)
