"""Trackers around a run: found by name before it, told of every round, and let go at the first error."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed.errors import InputError, PolyfedError, nearest
from polyfed.runs.records import RoundRecord
from polyfed.trackers.interface import Tracker, metrics_of

if TYPE_CHECKING:
    from polyfed.config import Config

GROUP = "polyfed.trackers"  # the entry points of other packages
OURS = {
    "tensorboard": "polyfed.trackers.tensorboard:TensorBoard",
    "mlflow": "polyfed.trackers.mlflow:MLflow",
    "wandb": "polyfed.trackers.wandb:WandB",
}
PARTS = ("start", "log", "finish")


def check(names: Sequence[str]) -> list[Tracker]:
    """The trackers of these names, ready to start; one that cannot work is refused in a sentence."""
    return [_make(name) for name in names]


def _make(name: str) -> Tracker:
    others = {entry.name: entry.value for entry in entry_points(group=GROUP)}
    place = {**others, **OURS}.get(name, name)
    module, colon, attribute = place.partition(":")
    if not colon:
        raise InputError(
            f"track: there is no tracker called '{name}'; {nearest(name, [*OURS, *others])}, or module:Class"
        )
    try:
        kind: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"track: the tracker '{name}' cannot be imported: {error}") from None
    for needed in getattr(kind, "needs", ()):
        if importlib.util.find_spec(needed) is None:
            how = f"pip install 'polyfed[{name}]'" if name in OURS else f"install {needed}"
            raise InputError(f"track: {name} needs the package {needed}, which is not installed: {how}")
    missing = [part for part in PARTS if not callable(getattr(kind, part, None))]
    if missing:
        raise InputError(f"track: {place} is no tracker, it has no method {' and no '.join(missing)}")
    try:
        made: Tracker = kind()
    except Exception as error:
        raise InputError(f"track: the tracker '{name}' cannot be made: {type(error).__name__}: {error}") from None
    return made


class Watcher:
    """One tracker as an observer of an experiment. It never raises: the first error is noted and is its last."""

    def __init__(self, name: str, tracker: Tracker, note: Callable[[str], None]) -> None:
        self._name, self._tracker, self._note = name, tracker, note
        self._works = True
        self._started = False

    def started(self, config: Config, folder: Path, done: int) -> None:
        self._started = True
        self._try(lambda: self._tracker.start(config.run_name, folder, config.to_dict(), done))

    def round_done(self, record: RoundRecord) -> None:
        self._try(lambda: self._tracker.log(record.round, metrics_of(record)))

    def note(self, sentence: str) -> None:
        """Trackers are for numbers; what else happens is in the run folder."""

    def ended(self, state: str) -> None:
        if self._started:
            self._try(lambda: self._tracker.finish(state))

    def _try(self, action: Callable[[], None]) -> None:
        if not self._works:
            return
        try:
            action()
        except (Exception, SystemExit) as error:
            self._works = False
            what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self._note(f"the tracker {self._name} failed and is left out from here on: {what}")


@contextlib.contextmanager
def tracked(
    names: Sequence[str], trackers: Sequence[Tracker], note: Callable[[str], None]
) -> Iterator[list[Watcher]]:
    """Observers for a run, which are told how it ended."""
    watchers = [Watcher(name, tracker, note) for name, tracker in zip(names, trackers, strict=True)]
    state = "failed"
    try:
        yield watchers
        state = "finished"
    except PolyfedError as error:
        state = "stopped" if error.exit_code == 130 else "failed"
        raise
    finally:
        for watcher in watchers:
            watcher.ended(state)
