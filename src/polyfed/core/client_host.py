"""The client side of every engine: loads clients in the requested state, runs steps and stores new states."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from functools import partial

from polyfed import devices, profiling
from polyfed.core import rng
from polyfed.core.client import Client, ClientBefore, copy_into
from polyfed.core.client_evaluation import check_measures, measure_client
from polyfed.core.client_maker import ClientMaker as ClientMaker
from polyfed.core.codec import decode, encode, encode_in_parts
from polyfed.core.engine import INITIAL, Answer, Call, StateStore, Task, TrainingStats
from polyfed.core.finite_values import check_finite
from polyfed.core.frame_digest import SHA256, START, XXH3, digest_kind
from polyfed.core.guard import Released, ReleaseLog
from polyfed.core.loaded_client import LoadedClient, LoadedClients
from polyfed.core.memory_limits import failure_of, is_out_of_memory, repeat_with_less_memory
from polyfed.core.message_header import MessageHeader, read_header
from polyfed.core.method import Method
from polyfed.core.model_probes import PROBES, run_probe
from polyfed.core.payload import Payload, Value, detached_copy
from polyfed.core.place import CPU, to_cpu
from polyfed.core.schema import check_header
from polyfed.core.step import combined
from polyfed.errors import PayloadError, StateError
from polyfed.models.module_parts import tensors_of
from polyfed.training import Samples
from polyfed.training.precision import use_precision

EVALUATE = "evaluate"  # name of evaluations in random streams


class Host:
    """Runs tasks on clients. If loaded clients exceed `memory_budget` bytes, the least recently used are dropped.

    Dropping loses nothing, because a client's new state is stored before its answer is returned.
    """

    def __init__(self, maker: ClientMaker, store: StateStore, memory_budget: int, message_limit: int) -> None:
        self._maker = maker
        self._store = store
        # a site, which has a secret, wants cryptographic digests
        self._read_header = partial(read_header, limit=message_limit, cryptographic=bool(maker.secret))
        self._loaded = LoadedClients(memory_budget)
        self._test: Samples | None = None  # common test samples, once they are needed
        self._too_large = ("", 1)  # model and batch size of the task that ran last
        self._shared: tuple[tuple[int, bytes], MessageHeader, Payload | None] | None = None
        if maker.secret and not isinstance(store, ReleaseLog):
            raise StateError("clients of a site with a secret need a store that records their releases")

    def handle(self, call: Call, task: Task, shared: bytes, *, alone: bool = True) -> Answer:
        """Run one task and return its answer. Errors of the client or its method are returned as failures.

        A task that does not fit into a device's memory is repeated here, or by the engine if it was not `alone`.
        """
        kind = "+".join(call.steps or call.measures)
        with profiling.span("python", f"{task.client}: {kind}"):
            return self._handle(call, task, shared, alone)

    def _handle(self, call: Call, task: Task, shared: bytes, alone: bool) -> Answer:
        attempt = partial(self._attempt, call, task, shared)
        answer = attempt(None)
        if is_out_of_memory(answer):
            self.free_device()
        if not is_out_of_memory(answer) or not alone:
            return answer
        return repeat_with_less_memory(attempt, self.free_device, *self._too_large, self._maker.place.device)

    def free_device(self) -> None:
        """Drop all clients, and return their memory to the device. Their states are stored."""
        self._loaded.drop_all()
        self._shared = self._test = None
        gc.collect()  # errors refer to the tensors of the step that they ended
        devices.kind_of(self._maker.place.device.type).release_memory()

    def _attempt(self, call: Call, task: Task, shared: bytes, part: int | None) -> Answer:
        """Run one task, with at most `part` samples of a batch at a time."""
        started = time.perf_counter()
        self._too_large = ("of this client", 1)
        try:
            with profiling.span("load", "load client"):
                loaded = self._load(task.client, task.base)
            client = loaded.client
            self._too_large = (client.profile.architecture, client.settings.batch_size)
            settings = client.settings
            if part is not None:
                client.settings = dataclasses.replace(settings, micro_batch=part)
            client.seed, client.round, client.fits = self._maker.seed, call.round, []
            if not call.steps:
                is_probe = len(call.measures) == 1 and call.measures[0] in PROBES
                with profiling.span("evaluate", "evaluate"):
                    result = self._probe(client, call) if is_probe else self._evaluate(client, call, task, shared)
                frame = encode(result, digest_kind(shared)).data
                client.settings = settings
                self._loaded.free_memory(keep=task.client)
                return Answer(task.client, frame, seconds=time.perf_counter() - started)
            reply = self._run(loaded, call, task, shared)
            frame = encode(reply, digest_kind(shared)).data
            with profiling.span("write", "write state"):
                self._commit(loaded, call.number, task.discard, leaves=digest_kind(shared).cryptographic)
        except Exception as error:
            self._loaded.drop(task.client)  # it may be half changed; its last state is in the store
            return Answer(task.client, failure=failure_of(error))
        trained = tuple(TrainingStats(f.loss, f.samples, f.steps) for f in client.fits if f.samples and not f.aside)
        answer = Answer(task.client, frame, None, loaded.digest, time.perf_counter() - started, trained)
        if call.measures:
            answer = self._evaluate_early(client, call, task, shared, answer)
        client.settings = settings
        self._loaded.free_memory(keep=task.client)
        return answer

    def _evaluate_early(self, client: Client, call: Call, task: Task, shared: bytes, answer: Answer) -> Answer:
        """Add an evaluation of the client's new state to its answer, if it succeeds.

        If it fails, the evaluation at the end of the round reports why.
        """
        started = time.perf_counter()
        try:
            with profiling.span("evaluate", "evaluate"):
                evaluation = encode(self._evaluate(client, call, task, shared), digest_kind(shared)).data
        except Exception:
            self._loaded.drop(task.client)  # it may be half changed; its state is in the store
            return answer
        return dataclasses.replace(answer, evaluation=evaluation, evaluation_seconds=time.perf_counter() - started)

    def holds(self, name: str, version: int) -> bool:
        """Return whether a client is loaded in the given state version, so that nothing must be read for it."""
        loaded = self._loaded.get(name)
        return loaded is not None and loaded.version == version

    # steps

    def _run(self, loaded: LoadedClient, call: Call, task: Task, shared: bytes) -> Mapping[str, Value]:
        client, method, guard = loaded.client, self._maker.method, self._maker.guard
        messages = combined(method, call.steps)
        msg = self._receive(call, task, shared, client)
        reply: dict[str, Value] = {}
        if guard is not None:
            guard.prepare(client, call)
        for name, label in zip(call.steps, call.labels, strict=True):
            client.step = label
            client.model.train()  # as in a newly created client, whatever mode the last step left
            seeded = rng.seeded(client.seed, "torch", client.name, call.round, label)
            with seeded, profiling.span("python", label):
                answer = getattr(method, name)(client, msg)
            reply.update(answer or {})
        unknown = reply.keys() - messages.up.keys()
        if unknown:
            declared = ", ".join(messages.up) or "nothing"
            raise PayloadError(f"step '{call.steps[-1]}' returned '{sorted(unknown)[0]}'; it declares {declared}")
        if guard is not None:
            before = self._released(loaded)
            if not self._maker.place.on_cpu:
                reply, msg = to_cpu(reply), Payload(to_cpu(msg))
            reply, after = guard.protect(client, call, reply, msg, before)
            if after != before:
                self._record_released(loaded, after)
        return reply

    def _released(self, loaded: LoadedClient) -> Released:
        """Return the client's releases so far. A site uses its own log, whichever state the coordinator names."""
        if not self._maker.secret or not isinstance(self._store, ReleaseLog):
            return loaded.released
        released: Released = json.loads(self._store.read_releases(loaded.client.name) or b"{}")
        return released

    def _record_released(self, loaded: LoadedClient, released: Released) -> None:
        if self._maker.secret and isinstance(self._store, ReleaseLog):
            self._store.write_releases(loaded.client.name, json.dumps(released).encode())  # before the reply is sent
        else:
            loaded.released = released

    def _receive(self, call: Call, task: Task, shared: bytes, client: Client) -> Payload:
        """Decode the message to the client and check it against the schemas of the steps."""
        # The digest is part of the key, because a restarted coordinator reuses call numbers.
        key = (call.number, shared[:START])
        if self._shared is None or self._shared[0] != key:
            self._shared = (key, self._read_header(shared), None)
        _, shared_header, common = self._shared
        own_header = self._read_header(task.own) if task.own else None
        if own_header is None:
            header = shared_header
        else:
            duplicates = shared_header.sizes().keys() & own_header.sizes().keys()
            if duplicates:
                raise PayloadError(f"'{sorted(duplicates)[0]}' is both in `shared` and in `each`")
            header = shared_header.joined(own_header)
        if call.steps:
            check_header(header, combined(self._maker.method, call.steps).down, self._maker.method, client.profile)
        if common is None:
            common = decode(shared, shared_header)
            check_finite(common)
            common = self._maker.place.payload(common)
            self._shared = (key, shared_header, common)
        if own_header is None:
            return common
        own = decode(task.own, own_header)
        check_finite(own)
        return Payload({**common, **self._maker.place.payload(own)})

    # evaluation

    def evaluated_client(self, call: Call, task: Task, shared: bytes) -> Client:
        """Return a client as evaluations use it: in the task's state, with what was published loaded into it."""
        client = self._load(task.client, task.base).client
        self._loaded.drop(task.client)  # the caller may keep it and change it
        client.seed, client.round, client.fits = self._maker.seed, call.round, []
        with rng.seeded(client.seed, "torch", client.name, call.round, EVALUATE):
            self._prepare_prediction(client, call, task, shared)
        if not self._maker.place.on_cpu:  # the caller may not use a device
            client.model.cpu()
            client.state, client.device = to_cpu(client.state), CPU
        return client

    def _evaluate(self, client: Client, call: Call, task: Task, shared: bytes) -> Mapping[str, Value]:
        """Return counts of correct predictions, and the requested metrics. What `adopt` changes is undone."""
        method = self._maker.method
        check_measures(call)
        adopts = type(method).adopt is not Method.adopt
        before = ClientBefore(client) if adopts else None
        try:
            with (
                rng.seeded(client.seed, "torch", client.name, call.round, EVALUATE),
                use_precision(client.settings.precision, client.device),
            ):
                self._prepare_prediction(client, call, task, shared)
                reply = measure_client(client, method, call, self._global_test)
        finally:
            if before is not None and not before.restore():
                self._loaded.drop(task.client)  # its state is in the store
        return reply

    def _prepare_prediction(self, client: Client, call: Call, task: Task, shared: bytes) -> None:
        """Load what was published into a client, and set its model to evaluation mode."""
        client.step = EVALUATE
        method = self._maker.method
        if type(method).adopt is not Method.adopt:
            method.adopt(client, self._receive(call, task, shared, client))
        client.model.eval()

    def _probe(self, client: Client, call: Call) -> Mapping[str, Value]:
        """Return the result of a probe of the client's own model."""
        samples = self._global_test()
        if samples is None:
            raise PayloadError(f"'{call.measures[0]}' needs common test samples, which this client does not have")
        return run_probe(client, call.measures[0], samples)

    def _global_test(self) -> Samples | None:
        """Return the common test samples on the clients' device."""
        if self._test is None and self._maker.global_test is not None:
            self._test = self._maker.place.samples(self._maker.global_test)
        return self._test

    # states

    def _load(self, name: str, version: int) -> LoadedClient:
        """Return the client in the given state version."""
        loaded = self._loaded.get(name)
        if loaded is None or loaded.version != version:
            if loaded is None or version == INITIAL:
                self._loaded.drop(name)
                loaded = LoadedClient(self._maker.make_client(name), INITIAL, "", 0)
            if version != INITIAL:
                saved = decode(self._store.read(name, version))
                copy_into(loaded.client.model, saved.weights("model"))
                state = saved["state"]
                loaded.client.state = self._maker.place.state(dict(state) if isinstance(state, Mapping) else {})
                loaded.released = json.loads(str(saved.get("released", "{}")))
            loaded.version, loaded.digest = version, ""
            self._loaded.add(loaded, sum(tensor.nbytes for tensor in tensors_of(loaded.client.model.modules())))
        self._loaded.used(name)
        return loaded

    def _commit(self, loaded: LoadedClient, version: int, discard: Sequence[int], *, leaves: bool) -> None:
        """Store a client's new state. Its digest `leaves` the machine if messages to the client come from another."""
        saved: dict[str, Value] = {"model": loaded.client.model.state_dict(), "state": loaded.client.state}
        if loaded.released:
            saved["released"] = json.dumps(loaded.released)
        # inside one run the digest only has to find damage; `core/state_digest.py` computes the one for `state_hash`
        frame = encode_in_parts(saved, SHA256 if leaves else XXH3)
        self._store.write(loaded.client.name, version, frame.parts, discard)
        # Copies, as after a restart: the state must not share memory with a message or with the model.
        loaded.client.state = detached_copy(loaded.client.state)
        loaded.version, loaded.digest = version, self._public_digest(frame.digest)
        self._loaded.resize(loaded, len(frame))

    def _public_digest(self, digest: str) -> str:
        """Return the digest to send. A site's is keyed, because a plain digest would confirm guesses of its data."""
        secret = self._maker.secret
        return hmac.new(secret.encode(), f"state {digest}".encode(), hashlib.sha256).hexdigest() if secret else digest
