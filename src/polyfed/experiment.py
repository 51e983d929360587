"""Experiments: a run from its config to `result.json`. The rounds themselves are in `core.rounds`."""

from __future__ import annotations

import contextlib
import platform
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Protocol

import torch

import polyfed
from polyfed import profiling
from polyfed.config import Config, size_in_bytes
from polyfed.core.door import Door, TooFewRepliesError
from polyfed.core.engine import Call, Engine
from polyfed.core.rounds import RoundLoop, RoundResult, one_torch_thread
from polyfed.errors import PolyfedError, RunError
from polyfed.federation import analysis_probes, round_metrics
from polyfed.federation.engine_factory import make_engine
from polyfed.federation.failure_policy import FailurePolicy
from polyfed.federation.placement import main_place, recorded_device
from polyfed.federation.server_federation import ServerFederation
from polyfed.federation.simulation import SimulatedFederation
from polyfed.federation.summary import summary
from polyfed.guards.privacy_cost import count_releases
from polyfed.runs.checkpoint import CLIENT_STATES, Checkpoint, Checkpoints
from polyfed.runs.folder import RunFolder
from polyfed.runs.records import Result, RoundRecord


class Observer(Protocol):
    """Callbacks of a run, for progress bars and trackers. They run in the main process, between rounds."""

    # `done`: rounds that were finished before a resume
    def started(self, config: Config, folder: Path, done: int) -> None: ...

    def round_done(self, record: RoundRecord) -> None: ...

    def note(self, sentence: str) -> None: ...  # a message for the user


class StoppedError(PolyfedError):
    """The user stopped the run. It can be resumed from its checkpoint."""

    exit_code = 130


@dataclass
class Experiment:
    """A federation, its run folder and its rounds.

    Creating it checks everything that can be checked before the first round, and writes nothing.
    """

    federation: ServerFederation
    folder: RunFolder
    observers: list[Observer] = field(default_factory=list)
    engine: Engine | None = None  # an engine that keeps client states itself; None: create the one the config names

    def __post_init__(self) -> None:
        self.config = self.federation.config
        self.federation.place = main_place(self.config)
        self.roster = self.federation.profiles()
        with one_torch_thread():
            self.server = self.federation.check(self.roster)
        self._stop = False
        self._failures = FailurePolicy(self.config.failures, self.federation.selected_clients)

    def run(self) -> Result:
        """Run all rounds, from the last valid checkpoint if there is one, and return the result."""
        # signal handlers first: once the folder is locked, other processes may ask this one to stop
        with one_torch_thread(), self._handle_signals():
            self.folder.lock()
            try:
                return self._run()
            except PolyfedError as error:
                if not isinstance(error, StoppedError):
                    self.folder.event("failed", message=str(error))
                raise
            finally:
                self.folder.unlock()

    def _run(self) -> Result:
        checkpoints = Checkpoints(self.folder.checkpoint_folder, local_states=self.engine is None)
        self.federation.save_metadata(self.folder, self.roster)
        with profiling.span("startup", "start the engine"):
            engine = self.engine or self._create_engine()
        try:
            loop = self._round_loop(engine)
            history = self._start(checkpoints, loop.door)
            self._failures.update(history)
            saved_at = time.monotonic()
            for number in range(len(history) + 1, self.config.rounds + 1):
                history.append(self._round(loop, number))
                self._note(*self._failures.update(history))
                last = number == self.config.rounds
                due = time.monotonic() - saved_at >= self.config.checkpoint.seconds
                if last or due or self._stop:
                    self._save_checkpoint(checkpoints, loop.door, number, history)
                    saved_at = time.monotonic()
                if self._stop and not last:
                    self.folder.event("stopped", round=number)
                    raise StoppedError(f"stopped after round {number}; resume with: {self._resume_command}")
            return self._finish(checkpoints, loop.door, history, engine)
        finally:
            engine.close()

    def _create_engine(self) -> Engine:
        if not isinstance(self.federation, SimulatedFederation):
            raise RunError("clients with data on other machines need an engine that reaches them")
        folder = self.folder.checkpoint_folder
        return make_engine(self.federation, folder / CLIENT_STATES, folder / "federation")

    def _round_loop(self, engine: Engine) -> RoundLoop:
        config, federation = self.config, self.federation
        door = Door(
            federation.method,
            engine,
            self.roster,
            min_replies=config.failures.min_replies,
            max_ratio=config.failures.max_ratio,
            message_limit=size_in_bytes(config.engine.message_limit),
            on_reply=self._record_upload if federation.recorded_clients else None,
        )
        return RoundLoop(
            federation.method,
            self.server,
            door,
            select=self._failures.selected_clients,
            measures=self._measures(),
            metrics=round_metrics.requested(config.evaluate),
            evaluate_every=config.evaluate.every,
            histograms=config.evaluate.histograms,
            probe=partial(analysis_probes.run_probes, config.evaluate, door, self.server),
            repeats=config.failures.repeats if config.failures.on_too_few == "repeat" else 0,
            on_repeat=self._note,
        )

    def _start(self, checkpoints: Checkpoints, door: Door) -> list[RoundRecord]:
        """Restore the newest valid checkpoint, if there is one. Return the records of the rounds done so far."""
        last, older, damaged = checkpoints.load_latest()
        self._note(*damaged)
        history: list[RoundRecord] = []
        if last is None:
            self.folder.event("started", rounds=self.config.rounds, clients=self.config.clients)
            self._note(*self.federation.notes, *round_metrics.notes(self.config.evaluate, self.federation.method))
        else:
            state = self.server.place.state(last.server)
            self.server.state, door.ledger, history = state, last.ledger, last.history
            door.checkpoint_versions = [*older, dict(last.ledger.versions)]
            self.folder.event("resumed", round=last.round)
        checkpoints.store.keep_only(door.checkpoint_versions)
        for observer in self.observers:
            observer.started(self.config, self.folder.path, len(history))
        return history

    def _round(self, loop: RoundLoop, number: int) -> RoundRecord:
        """Run one round, write its events and artifacts, and return its record."""
        try:
            result = loop.run_round(number)
        except TooFewRepliesError:
            for failure in loop.door.stats.failures:
                self.folder.event("failure", **failure)
            raise
        with profiling.span("write", "write events"):
            for event in self.server.events:
                self.folder.event("method", **{**event, "kind": event["event"]})
            for kind, tensors in self.server.artifacts.items():
                self.folder.write_artifact(kind, number, tensors)
            if result.evaluation.confusion:
                matrices = round_metrics.confusion_by_client(result.evaluation, loop.clients)
                self.folder.write_artifact("confusion", number, matrices)
            for failure in result.stats.failures:
                self.folder.event("failure", **failure)
            for upload in result.stats.uploads:
                self.folder.event("left", round=number, **upload)
            record = self._record(result)
            self.folder.event("round", **record.to_dict())
        for observer in self.observers:
            observer.round_done(record)
        return record

    def _record(self, result: RoundResult) -> RoundRecord:
        """Return the record of a round, as written to events, checkpoints and the result."""
        stats, guard = result.stats, self.federation.guard
        accuracy, metrics = round_metrics.measured(result.evaluation)
        server_seconds = result.seconds - stats.call_seconds - stats.evaluation_wait_seconds
        return RoundRecord(
            round=result.number,
            accuracy=accuracy,
            metrics=metrics,
            confusion=round_metrics.pooled_confusion(result.evaluation),
            loss=stats.task_loss(),
            up=stats.up,
            down=stats.down,
            overhead={"up": stats.overhead_up, "down": stats.overhead_down},
            seconds={
                "total": result.seconds,
                "train": stats.call_seconds,
                "evaluate": stats.evaluation_seconds,
                "server": max(0.0, server_seconds),
                "clients": stats.client_seconds,
            },
            failures=[{k: f[k] for k in ("round", "client", "steps", "kind", "message")} for f in stats.failures],
            released=None if guard is None else count_releases(guard.protections, stats.uploads, stats.failures),
        )

    def _save_checkpoint(self, checkpoints: Checkpoints, door: Door, number: int, history: list[RoundRecord]) -> None:
        checkpoints.save(Checkpoint(number, self.server.state, door.ledger, history))
        door.checkpoint_versions = [*door.checkpoint_versions[-1:], dict(door.ledger.versions)]

    def _finish(self, checkpoints: Checkpoints, door: Door, history: list[RoundRecord], engine: Engine) -> Result:
        result = summary(
            self.config,
            history,
            names=self.federation.names,
            server_state=self.server.state,
            digests=checkpoints.store.content_digests(door.ledger),
            other_memory=engine.peak_memory(),
            versions={**versions(), **recorded_device(self.federation.place), "code": self._recorded_code()},
            source=self.federation.source,
            guard=self.federation.guard,
        )
        checkpoints.store.keep_only([door.ledger.versions])
        self.folder.write_result(result)
        result.folder = self.folder.path
        self.folder.event("finished", state_hash=result["state_hash"])
        return result

    # helpers

    def _recorded_code(self) -> Mapping[str, str]:
        """Return the digests of the code that the run started with; files may have changed since."""
        recorded = self.folder.config().get("versions")
        return recorded.get("code", {}) if isinstance(recorded, Mapping) else {}

    def _record_upload(self, call: Call, client: str, frame: bytes) -> None:
        """Write a reply to the run folder, if the config records this client's uploads."""
        if client in self.federation.recorded_clients:
            self.folder.write_upload(client, call.round, "+".join(call.labels), frame)

    def _measures(self) -> tuple[str, ...]:
        wanted = []
        if self.config.evaluate.personal:
            wanted.append("personal")
        if self.config.evaluate.global_ and self.federation.global_test is not None:
            wanted.append("global")
        return tuple(wanted)

    @property
    def _resume_command(self) -> str:
        """The command that resumes the run after a stop."""
        return f"polyfed resume {self.folder.path}" if self.engine is None else "the same command"

    def _note(self, *messages: str) -> None:
        for message in messages:
            self.folder.event("note", message=message)
            for observer in self.observers:
                observer.note(message)

    @contextlib.contextmanager
    def _handle_signals(self) -> Iterator[None]:
        """Stop after the round at the first Ctrl-C or SIGTERM, with a checkpoint. Stop at once at the second."""

        def ask_to_stop(number: int, frame: FrameType | None) -> None:
            if self._stop:
                raise KeyboardInterrupt
            self._stop = True
            self._note("stopping after this round, with a checkpoint; press Ctrl-C again to stop at once")

        try:
            before = {number: signal.signal(number, ask_to_stop) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not in the main thread: the caller handles signals
            yield
            return
        try:
            yield
        except KeyboardInterrupt:
            raise StoppedError(f"stopped; resume with: {self._resume_command}") from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def versions() -> dict[str, str]:
    """Return the versions that a result depends on besides its config."""
    return {
        "polyfed": polyfed.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": f"{platform.system()} {platform.machine()}",
    }
