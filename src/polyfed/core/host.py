"""The client side of every engine: holds clients, brings them to the right state, runs a step, commits, answers."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
import traceback
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from polyfed.core import rng
from polyfed.core.client import Client, copy_into, weights_of
from polyfed.core.codec import MessageHeader, decode, encode, read_header
from polyfed.core.engine import INITIAL, Answer, Call, Failure, StateStore, Task, TrainingStats
from polyfed.core.guard import Guard, Released, ReleaseLog
from polyfed.core.method import Method
from polyfed.core.payload import Payload, Value, detached_copy
from polyfed.core.probes import PROBES, run_probe
from polyfed.core.schema import check_finite, check_header
from polyfed.core.step import combined
from polyfed.errors import PayloadError, PolyfedError, StateError
from polyfed.training import Samples, score

MEASURES = ("personal", "global")  # of which right answers are counted
FRAME_START = 36  # bytes of a frame that hold its digest


class ClientMaker(Protocol):
    """Makes a client from its description: its model with its initial weights, its data, no memory."""

    @property
    def seed(self) -> int: ...

    @property
    def guard(self) -> Guard | None:
        """What every reply passes before it leaves."""
        ...

    @property
    def secret(self) -> str:
        """Of the clients' owner, who tells it nobody; empty in a simulation."""
        ...

    method: Method
    global_test: Samples | None

    def make_client(self, name: str) -> Client: ...


@dataclass
class _Live:
    client: Client
    version: int
    digest: str
    size: int
    released: Released = field(default_factory=dict)  # by protected field, where it is part of the state


class Host:
    """Runs tasks. Live clients beyond `memory_budget` bytes are dropped, least recently used first.

    Dropping loses nothing: every state was committed before its answer left.
    """

    def __init__(self, maker: ClientMaker, store: StateStore, memory_budget: int, message_limit: int) -> None:
        self._maker = maker
        self._store = store
        self._budget = memory_budget
        self._limit = message_limit
        self._live: OrderedDict[str, _Live] = OrderedDict()
        self._held = 0  # bytes of the live clients
        self._shared: tuple[tuple[int, bytes], MessageHeader, Payload | None] | None = None
        if maker.secret and not isinstance(store, ReleaseLog):
            raise StateError("clients whose owner has a secret need a store that keeps what they released")

    def handle(self, call: Call, task: Task, shared: bytes) -> Answer:
        """One task, from received bytes to an answer. Never raises for what a client or its method does."""
        started = time.perf_counter()
        try:
            live = self._bring(task.client, task.base)
            client = live.client
            client.seed, client.round, client.fits = self._maker.seed, call.round, []
            if not call.steps:
                only_look = len(call.measures) == 1 and call.measures[0] in PROBES
                counted = self._look(client, call) if only_look else self._evaluate(client, call, task, shared)
                self._make_room(keep=task.client)
                return Answer(task.client, counted, seconds=time.perf_counter() - started)
            reply = self._run(live, call, task, shared)
            frame = encode(reply).data
            self._commit(live, call.number)
            if task.discard:
                self._store.discard(task.client, task.discard)
        except StateError as error:
            self._drop(task.client)
            return Answer(task.client, failure=Failure("storage", str(error), traceback.format_exc()))
        except PayloadError as error:
            self._drop(task.client)
            return Answer(task.client, failure=Failure("refused", str(error), traceback.format_exc()))
        except Exception as error:
            self._drop(task.client)  # it may be half changed; its last state is in the store
            words = str(error) if isinstance(error, PolyfedError) else f"{type(error).__name__}: {error}"
            return Answer(task.client, failure=Failure("raised", words, traceback.format_exc()))
        trained = tuple(TrainingStats(f.loss, f.samples, f.steps) for f in client.fits if f.samples and not f.aside)
        self._make_room(keep=task.client)
        return Answer(task.client, frame, None, live.digest, time.perf_counter() - started, trained)

    def holds(self, name: str, version: int) -> bool:
        """Whether a client is live in the state that call `version` led to, so that nothing need be read for it."""
        live = self._live.get(name)
        return live is not None and live.version == version

    # one step after the other

    def _run(self, live: _Live, call: Call, task: Task, shared: bytes) -> Mapping[str, Value]:
        client, method, guard = live.client, self._maker.method, self._maker.guard
        messages = combined(method, call.steps)
        msg = self._receive(call, task, shared, client)
        reply: dict[str, Value] = {}
        if guard is not None:
            guard.prepare(client, call)
        for name, label in zip(call.steps, call.labels, strict=True):
            client.step = label
            client.model.train()  # whatever the last step or evaluation left, and as in a client made anew
            with rng.seeded(client.seed, "torch", client.name, call.round, label):
                answer = getattr(method, name)(client, msg)
            reply.update(answer or {})
        unknown = reply.keys() - messages.up.keys()
        if unknown:
            declared = ", ".join(messages.up) or "nothing"
            raise PayloadError(f"step '{call.steps[-1]}' returned '{sorted(unknown)[0]}'; it declares {declared}")
        if guard is not None:
            before = self._released(live)
            reply, after = guard.protect(client, call, reply, msg, before)
            if after != before:
                self._note_released(live, after)
        return reply

    def _released(self, live: _Live) -> Released:
        """The releases to go by: at a site those of its own book, whichever state the coordinator names."""
        if not self._maker.secret or not isinstance(self._store, ReleaseLog):
            return live.released
        found: Released = json.loads(self._store.read_releases(live.client.name) or b"{}")
        return found

    def _note_released(self, live: _Live, released: Released) -> None:
        if self._maker.secret and isinstance(self._store, ReleaseLog):
            self._store.write_releases(live.client.name, json.dumps(released).encode())  # before anything leaves
        else:
            live.released = released

    def _receive(self, call: Call, task: Task, shared: bytes, client: Client) -> Payload:
        """What came down, checked against the steps' declaration before it is used."""
        # A coordinator that starts again uses call numbers again, for other messages: the frame's digest tells them.
        key = (call.number, shared[:FRAME_START])
        if self._shared is None or self._shared[0] != key:
            self._shared = (key, read_header(shared, limit=self._limit), None)
        _, seen, common = self._shared
        mine = read_header(task.own, limit=self._limit) if task.own else None
        if mine is None:
            joined = seen
        else:
            twice = seen.sizes().keys() & mine.sizes().keys()
            if twice:
                raise PayloadError(f"'{sorted(twice)[0]}' is both in what goes to all and in what goes to each")
            joined = seen.joined(mine)
        if call.steps:
            check_header(joined, combined(self._maker.method, call.steps).down, self._maker.method, client.profile)
        if common is None:
            common = decode(shared, seen)
            check_finite(common)
            self._shared = (key, seen, common)
        if mine is None:
            return common
        own = decode(task.own, mine)
        check_finite(own)
        return Payload({**common, **own})

    # evaluation

    def _evaluate(self, client: Client, call: Call, task: Task, shared: bytes) -> bytes:
        """Counts of right answers. What `adopt` changes is undone, so an evaluation leaves no trace."""
        method = self._maker.method
        for measure in call.measures:
            if measure not in MEASURES:
                raise PayloadError(
                    f"measure '{measure}' cannot be taken here; allowed are {' and '.join(MEASURES)}, together or "
                    f"alone, and each of {', '.join(PROBES)} alone"
                )
        client.step = "evaluate"
        adopts = type(method).adopt is not Method.adopt
        kept = (weights_of(client.model), detached_copy(client.state)) if adopts else None
        found: dict[str, Value] = {}
        try:
            with rng.seeded(client.seed, "torch", client.name, call.round, "evaluate"):
                if adopts:
                    method.adopt(client, self._receive(call, task, shared, client))
                client.model.eval()
                ways = {"": method.predict, **method.also_predict()}
                for measure in call.measures:
                    samples = client.test if measure == "personal" else self._maker.global_test
                    if samples is None:
                        continue
                    for way, predict in ways.items():
                        got = score(partial(predict, client), samples)
                        found[measure + (f" by {way}" if way else "")] = {"correct": got.correct, "total": got.total}
        finally:
            if kept is not None:
                copy_into(client.model, kept[0])
                client.state = kept[1]
        return encode(found).data

    def _look(self, client: Client, call: Call) -> bytes:
        """What is asked of the client's own model for analysis."""
        if self._maker.global_test is None:
            raise PayloadError(f"'{call.measures[0]}' are of common test samples, and this client has none")
        return encode(run_probe(client, call.measures[0], self._maker.global_test)).data

    # states

    def _bring(self, name: str, version: int) -> _Live:
        """The client in the state that call `version` led to."""
        live = self._live.get(name)
        if live is None or live.version != version:
            if live is None or version == INITIAL:
                self._drop(name)
                live = _Live(self._maker.make_client(name), INITIAL, "", 0)
            if version != INITIAL:
                saved = decode(self._store.read(name, version))
                copy_into(live.client.model, saved.weights("model"))
                state = saved["state"]
                live.client.state = dict(state) if isinstance(state, Mapping) else {}
                live.released = json.loads(str(saved.get("released", "{}")))
            live.version, live.digest = version, ""
            self._live[name] = live
            weights = live.client.model.state_dict().values()
            self._weigh(live, sum(t.numel() * t.element_size() for t in weights))
        self._live.move_to_end(name)
        return live

    def _commit(self, live: _Live, version: int) -> None:
        kept: dict[str, Value] = {"model": live.client.model.state_dict(), "state": live.client.state}
        if live.released:
            kept["released"] = json.dumps(live.released)
        frame = encode(kept)
        self._store.write(live.client.name, version, frame.data)
        # Its own copies, as after a restart: what is shared with a message or with the model stays no state (R2).
        live.client.state = detached_copy(live.client.state)
        live.version, live.digest = version, self._sealed(frame.digest)
        self._weigh(live, len(frame.data))

    def _sealed(self, digest: str) -> str:
        """A state's digest as it may be told: who guesses a site's data could compute the plain one, and compare."""
        secret = self._maker.secret
        return hmac.new(secret.encode(), f"state {digest}".encode(), hashlib.sha256).hexdigest() if secret else digest

    def _weigh(self, live: _Live, state: int) -> None:
        """Keep count of what live clients hold: their state, and their share of the data."""
        size = state + live.client.train.images.nbytes + live.client.test.images.nbytes
        self._held += size - live.size
        live.size = size

    def _drop(self, name: str) -> None:
        gone = self._live.pop(name, None)
        self._held -= gone.size if gone is not None else 0

    def _make_room(self, keep: str) -> None:
        while self._held > self._budget and len(self._live) > 1:
            self._drop(next(name for name in self._live if name != keep))
