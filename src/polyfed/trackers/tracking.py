"""Create trackers by name and report the rounds of a run to them."""

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

ENTRY_POINTS = "polyfed.trackers"  # group for trackers of other packages
BUILT_IN = {
    "tensorboard": "polyfed.trackers.tensorboard:TensorBoard",
    "mlflow": "polyfed.trackers.mlflow:MLflow",
    "wandb": "polyfed.trackers.wandb:WandB",
}
METHODS = ("start", "log", "finish")


def create_trackers(names: Sequence[str]) -> list[Tracker]:
    """Create the trackers with these names. Raise InputError for a tracker that cannot work."""
    return [_create(name) for name in names]


def _create(name: str) -> Tracker:
    plugins = {entry.name: entry.value for entry in entry_points(group=ENTRY_POINTS)}
    location = {**plugins, **BUILT_IN}.get(name, name)
    module, colon, attribute = location.partition(":")
    if not colon:
        raise InputError(
            f"track: there is no tracker called '{name}'; {nearest(name, [*BUILT_IN, *plugins])}, or module:Class"
        )
    try:
        kind: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"track: the tracker '{name}' cannot be imported: {error}") from None
    for package in getattr(kind, "needs", ()):
        if importlib.util.find_spec(package) is None:
            command = f"pip install 'polyfed[{name}]'" if name in BUILT_IN else f"install {package}"
            raise InputError(f"track: {name} needs the package {package}, which is not installed: {command}")
    missing = [name for name in METHODS if not callable(getattr(kind, name, None))]
    if missing:
        raise InputError(f"track: {location} is not a tracker: it has no method {' and no '.join(missing)}")
    try:
        tracker: Tracker = kind()
    except Exception as error:
        raise InputError(f"track: the tracker '{name}' cannot be created: {type(error).__name__}: {error}") from None
    return tracker


class TrackerObserver:
    """Observer that reports to one tracker. It never raises: after the first error the tracker is switched off."""

    def __init__(self, name: str, tracker: Tracker, note: Callable[[str], None]) -> None:
        self._name, self._tracker, self._note = name, tracker, note
        self._enabled = True
        self._started = False

    def started(self, config: Config, folder: Path, done: int) -> None:
        self._started = True
        self._try(lambda: self._tracker.start(config.run_name, folder, config.to_dict(), done))

    def round_done(self, record: RoundRecord) -> None:
        self._try(lambda: self._tracker.log(record.round, metrics_of(record)))

    def note(self, sentence: str) -> None:
        """Ignore notes: trackers log metrics only."""

    def ended(self, state: str) -> None:
        """Tell the tracker how the run ended."""
        if self._started:
            self._try(lambda: self._tracker.finish(state))

    def _try(self, action: Callable[[], None]) -> None:
        if not self._enabled:
            return
        try:
            action()
        except (Exception, SystemExit) as error:
            self._enabled = False
            message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self._note(f"the tracker {self._name} failed and is switched off: {message}")


@contextlib.contextmanager
def track_run(
    names: Sequence[str], trackers: Sequence[Tracker], note: Callable[[str], None]
) -> Iterator[list[TrackerObserver]]:
    """Provide an observer per tracker for a run, and tell the trackers how the run ended."""
    observers = [TrackerObserver(name, tracker, note) for name, tracker in zip(names, trackers, strict=True)]
    state = "failed"
    try:
        yield observers
        state = "finished"
    except PolyfedError as error:
        state = "stopped" if error.exit_code == 130 else "failed"
        raise
    finally:
        for observer in observers:
            observer.ended(state)
