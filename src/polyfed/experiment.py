"""The one place where a config becomes a federation and rounds happen."""

from __future__ import annotations

import contextlib
import platform
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

import torch

import polyfed
from polyfed.config import Config, size_in_bytes
from polyfed.core.codec import decode, encode
from polyfed.core.cohort import Cohort
from polyfed.core.door import Door, TooFewRepliesError
from polyfed.core.engine import Call, Engine
from polyfed.core.method import Method
from polyfed.core.payload import State
from polyfed.core.server import Server
from polyfed.engines import ray_cluster
from polyfed.engines.pool import PoolEngine
from polyfed.engines.serial import SerialEngine
from polyfed.errors import PolyfedError, RunError
from polyfed.federation import probes, ray_nodes
from polyfed.federation.plan import Plan
from polyfed.federation.simulation import HOST_FACTORY, SimulatedFederation, make_host
from polyfed.federation.summary import summary
from polyfed.guards.privacy_cost import released
from polyfed.machine import available_cores
from polyfed.runs.checkpoint import CLIENT_STATES, Checkpoint, Checkpoints
from polyfed.runs.folder import RunFolder
from polyfed.runs.records import Accuracy, Result, RoundRecord


class Observer(Protocol):
    """Somebody who watches a run: a progress bar, a tracker."""

    def started(self, config: Config, folder: Path, done: int) -> None: ...

    def round_done(self, record: RoundRecord) -> None: ...

    def note(self, sentence: str) -> None: ...


class StoppedError(PolyfedError):
    """The user stopped the run; its checkpoint is whole."""

    exit_code = 130


@dataclass
class Experiment:
    """A federation, its run folder, and the loop over rounds."""

    federation: Plan
    folder: RunFolder
    observers: list[Observer] = field(default_factory=list)
    engine: Engine | None = None  # one that is there already, with states of its own; none: what the config names

    def __post_init__(self) -> None:
        self.config = self.federation.config
        self.roster = self.federation.profiles()
        if self.config.engine.name == "ray":
            ray_cluster.installed()
        self.federation.check(self.roster)
        self._measured: dict[str, dict[str, tuple[int, int]]] = {}
        self._stop = False

    def run(self) -> Result:
        """From the last whole checkpoint, or from the start, to the result."""
        with one_torch_thread(), self._stopping_politely():  # before the lock tells others that they may ask
            self.folder.lock()
            try:
                return self._run()
            except PolyfedError as error:
                if not isinstance(error, StoppedError):
                    self.folder.event("failed", message=str(error))
                raise
            finally:
                self.folder.unlock()

    # the loop

    def _run(self) -> Result:
        # an engine that was given keeps its clients' states where they are
        checkpoints = Checkpoints(self.folder.checkpoint_folder, local_states=self.engine is None)
        self.federation.save_metadata(self.folder, self.roster)
        engine = self.engine or self._make_engine()
        try:
            door = Door(
                self.federation.method,
                engine,
                self.roster,
                min_replies=self.config.failures.min_replies,
                message_limit=size_in_bytes(self.config.engine.message_limit),
                keep=self._keep_upload if self.federation.recorded else None,
            )
            server = self.federation.server(self.roster)
            history = self._begin(checkpoints, door, server)
            done = len(history)
            saved_at, saved_round = time.monotonic(), done
            for number in range(done + 1, self.config.rounds + 1):
                record = self._round(number, door, server)
                history.append(record)
                self.folder.event("round", **record.to_dict())
                for observer in self.observers:
                    observer.round_done(record)
                last = number == self.config.rounds
                old = time.monotonic() - saved_at >= self.config.checkpoint.seconds
                if last or old or self._stop:
                    checkpoints.save(Checkpoint(number, server.state, door.ledger, history))
                    door.pinned = [*door.pinned[-1:], dict(door.ledger.versions)]
                    saved_at, saved_round = time.monotonic(), number
                if self._stop and not last:
                    self.folder.event("stopped", round=saved_round)
                    raise StoppedError(f"stopped after round {number}; go on with: {self._again}")
            return self._finish(checkpoints, door, server, history, engine)
        finally:
            engine.close()

    def _make_engine(self) -> Engine:
        if not isinstance(self.federation, SimulatedFederation):
            raise RunError("clients whose data is elsewhere need an engine that reaches them")
        folder = self.folder.checkpoint_folder
        return make_engine(self.federation, folder / CLIENT_STATES, folder / "federation")

    def _begin(self, checkpoints: Checkpoints, door: Door, server: Server) -> list[RoundRecord]:
        """Put everything where the last whole checkpoint left it; without one, at the start."""
        last, older, damaged = checkpoints.load_latest()
        for sentence in damaged:
            self._note(sentence)
        history: list[RoundRecord] = []
        if last is None:
            server.round = 0
            self.federation.method.init(server)
            server.state = kept(server.state)
            self.folder.event("started", rounds=self.config.rounds, clients=self.config.clients)
            for sentence in self.federation.notes:
                self._note(sentence)
        else:
            server.state, door.ledger, history = last.server, last.ledger, last.history
            door.pinned = [*older, dict(last.ledger.versions)]
            self.folder.event("resumed", round=last.round)
        checkpoints.store.keep_only(door.pinned)
        for observer in self.observers:
            observer.started(self.config, self.folder.path, len(history))
        return history

    def _round(self, number: int, door: Door, server: Server) -> RoundRecord:
        """One round, repeated where too few clients answered and the config says so."""
        repeats = self.config.failures.repeats if self.config.failures.on_too_few == "repeat" else 0
        before = encode(server.state).data if repeats else b""
        for attempt in range(repeats + 1):
            try:
                return self._attempt(number, door, server)
            except TooFewRepliesError as error:
                if attempt == repeats:
                    for failure in door.stats.failures:
                        self.folder.event("failure", **failure)
                    raise
                self._note(f"{error}; the round is repeated")
                door.undo_round()
                server.state = dict(decode(before))
        raise RunError(f"round {number} could not be finished")

    def _attempt(self, number: int, door: Door, server: Server) -> RoundRecord:
        door.begin_round(number)
        server.round, server.events, server.artifacts = number, [], {}
        self._measured = {}
        last = number == self.config.rounds
        due = last or number % self.config.evaluate.every == 0
        server.histograms = due and self.config.evaluate.histograms
        wanted = self._measures() if due else ()
        method = self.federation.method
        everyone = self.federation.names
        measured: set[str] = set()
        under_way = []
        started = time.perf_counter()

        def measure(names: tuple[str, ...]) -> None:
            chosen = tuple(name for name in names if name in wanted and name not in measured)
            if chosen:
                measured.update(chosen)
                under_way.append(door.measure_meanwhile(everyone, chosen, method.publish(server)))

        selected = self.federation.selected(number)
        method.round(server, Cohort(door, selected, measure))
        if last:
            if type(method).finish is not Method.finish:
                measured.clear()  # what counts in the last round is what the finish leaves
            method.finish(server, Cohort(door, everyone, measure))
        measure(wanted)
        door.settle()
        if due:
            probes.look(self.config.evaluate, door, server, selected)
        server.state = kept(server.state)
        for each in under_way:
            self._measured.update(each.result())
        seconds = time.perf_counter() - started
        for event in server.events:
            self.folder.event("method", **{**event, "kind": event["event"]})
        for kind, tensors in server.artifacts.items():
            self.folder.write_artifact(kind, number, tensors)
        return self._record(number, door, seconds)

    def _record(self, number: int, door: Door, seconds: float) -> RoundRecord:
        """Record the measurements of a round, for events, checkpoints and the result."""
        stats, guard = door.stats, self.federation.guard
        for failure in stats.failures:
            self.folder.event("failure", **failure)
        for item in stats.left:
            self.folder.event("left", round=number, **item)
        accuracy = {}
        for name, counts in self._measured.items():
            if not any(total for _, total in counts.values()):
                continue  # nobody has test samples: not measured, which is not the same as never right
            by_client = [c / n if n else None for c, n in counts.values()]
            known = [value for value in by_client if value is not None]
            pooled = sum(c for c, _ in counts.values()) / max(1, sum(n for _, n in counts.values()))
            # personal: weighted by held-out samples; global: all clients see the same samples, so a plain mean
            value = pooled if name.startswith("personal") else sum(known) / max(1, len(known))
            accuracy[name] = Accuracy(value, by_client)
        return RoundRecord(
            round=number,
            accuracy=accuracy,
            loss=stats.task_loss(),
            up=stats.up,
            down=stats.down,
            overhead={"up": stats.overhead_up, "down": stats.overhead_down},
            seconds={
                "total": seconds,
                "train": stats.waited,
                "evaluate": stats.evaluated,
                "server": max(0.0, seconds - stats.waited - stats.blocked),
                "clients": stats.client_seconds,
            },
            failures=[{k: f[k] for k in ("round", "client", "steps", "kind", "message")} for f in stats.failures],
            released=None if guard is None else released(guard.protections, stats.left, stats.failures),
        )

    def _finish(
        self, checkpoints: Checkpoints, door: Door, server: Server, history: list[RoundRecord], engine: Engine
    ) -> Result:
        result = summary(
            self.config,
            history,
            names=self.federation.names,
            server_state=server.state,
            digests=door.ledger.digests,
            other_memory=engine.peak_memory(),
            versions=versions(),
            source=self.federation.source,
            guard=self.federation.guard,
        )
        checkpoints.store.keep_only([door.ledger.versions])
        self.folder.write_result(result)
        self.folder.event("finished", state_hash=result["state_hash"])
        return result

    # helpers

    def _keep_upload(self, call: Call, client: str, frame: bytes) -> None:
        """Keep a reply as it left, where the config asks for this client's."""
        if client in self.federation.recorded:
            self.folder.write_upload(client, call.round, "+".join(call.labels), frame)

    def _measures(self) -> tuple[str, ...]:
        wanted = []
        if self.config.evaluate.personal:
            wanted.append("personal")
        if self.config.evaluate.global_ and self.federation.global_test is not None:
            wanted.append("global")
        return tuple(wanted)

    @property
    def _again(self) -> str:
        """The command that goes on with a run that was stopped."""
        return f"polyfed resume {self.folder.path}" if self.engine is None else "the same command"

    def _note(self, sentence: str) -> None:
        self.folder.event("note", message=sentence)
        for observer in self.observers:
            observer.note(sentence)

    @contextlib.contextmanager
    def _stopping_politely(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM ends the run after its round, with a checkpoint; the second ends it at once."""

        def ask_to_stop(number: int, frame: FrameType | None) -> None:
            if self._stop:
                raise KeyboardInterrupt
            self._stop = True
            self._note("stopping after this round, with a checkpoint; once more to stop at once")

        try:
            before = {number: signal.signal(number, ask_to_stop) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not in the main thread: whoever runs it there handles signals
            yield
            return
        try:
            yield
        except KeyboardInterrupt:
            raise StoppedError(f"stopped; go on with: {self._again}") from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def kept(state: State) -> State:
    """A server's state as a checkpoint gives it back: the next round sees the same memory layouts, resumed or not.

    What cannot be kept is refused here, after the round that made it, not when a checkpoint is due.
    """
    return dict(decode(encode(state).data))


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """Sums over threads depend on their number; with one, results are equal on every engine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def make_engine(federation: SimulatedFederation, store: Path, scratch: Path) -> Engine:
    """The engine that the config names."""
    wanted = federation.config.engine
    if wanted.name == "serial":
        return SerialEngine(make_host(federation, store))
    if wanted.name == "ray":
        return ray_nodes.ray_engine(federation, store, scratch)
    workers = wanted.workers if isinstance(wanted.workers, int) else available_cores()
    workers = min(workers, max(1, federation.config.per_round))
    description = {**federation.describe_for_workers(scratch), "store": str(store)}
    return PoolEngine(HOST_FACTORY, description, workers, timeout=wanted.timeout)


def versions() -> dict[str, str]:
    """What a result depends on besides its config."""
    return {
        "polyfed": polyfed.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": f"{platform.system()} {platform.machine()}",
    }
