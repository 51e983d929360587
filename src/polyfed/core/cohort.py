"""The clients of a round, as a method sees them. `call` is the only door between server and client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from polyfed.core.class_tables import ClassTable
from polyfed.core.door import Door
from polyfed.core.method import Outgoing
from polyfed.core.payload import Payload, Value
from polyfed.core.step import Step
from polyfed.errors import PayloadError


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
        return self._door.ask(names, self.ids, Outgoing({**out.shared, **(shared or {})}, own))

    def call(
        self,
        *steps: Step,
        shared: Mapping[str, Value] | None = None,
        each: Mapping[str, Mapping[str, Value]] | None = None,
        out: Outgoing | None = None,
    ) -> dict[str, Payload]:
        """Run steps at every client; all replies, in client order, failures left out."""
        return dict(self.stream(*steps, shared=shared, each=each, out=out))

    def sum(
        self,
        *steps: Step,
        shared: Mapping[str, Value] | None = None,
        each: Mapping[str, Mapping[str, Value]] | None = None,
        out: Outgoing | None = None,
    ) -> Payload:
        """Run steps at every client; only the total of their replies, added in client order."""
        total: Value = {}
        for _, reply in self.stream(*steps, shared=shared, each=each, out=out):
            total = _add(total, dict(reply)) if total else dict(reply)
        return Payload(total if isinstance(total, Mapping) else {})

    def measure(self, *measures: str) -> None:
        """Evaluate here rather than at the end of the round, where this round is evaluated at all.

        For methods whose 'personal' and 'global' accuracies belong to different moments of a round, and for those
        that train on the server: what follows here runs while the clients are evaluated.
        """
        self._measure(measures)


def _add(a: Value, b: Value) -> Value:
    """The sum of two replies: tensors and numbers by value, class tables by class, mappings by name."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a + b
    if isinstance(a, ClassTable) and isinstance(b, ClassTable):
        return _add_tables(a, b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return {k: _add(a[k], b[k]) if k in a and k in b else a.get(k, b.get(k)) for k in sorted(a.keys() | b.keys())}
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a + b
    raise PayloadError(f"a {type(a).__name__} and a {type(b).__name__} cannot be summed over clients")


def _add_tables(a: ClassTable, b: ClassTable) -> ClassTable:
    if a.counts is None or b.counts is None:
        raise PayloadError("class tables without counts cannot be summed over clients")
    rows: dict[int, Tensor] = {}
    counts: dict[int, int] = {}
    for table in (a, b):
        for label in table.classes.tolist():
            row = table.values[table.classes == label][0]
            rows[label] = rows[label] + row if label in rows else row
            counts[label] = counts.get(label, 0) + table.count(label)
    summed = ClassTable.of(rows, a.width)
    return ClassTable(summed.classes, summed.values, summed.classes.new_tensor([counts[c] for c in sorted(counts)]))
