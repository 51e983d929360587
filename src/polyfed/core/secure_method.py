"""Secure sums for any method that needs only means over clients (`aggregation: {name: mean, secure: true}`).

`secured` returns the method with four more steps for clients. A call of a step that uploads something becomes four
calls: clients send public keys, then encrypted shares of their secrets, then the masked reply, then the shares that
remove the masks from the sum. The server receives one reply, the mean. All calls are ordinary calls of steps, so they
run on every engine. `docs/robust.md` says what the protocol protects from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from polyfed.core import rng, secure_layout
from polyfed.core import secure_sum as sums
from polyfed.core.client import Client
from polyfed.core.cohort import Cohort
from polyfed.core.door import TooFewRepliesError
from polyfed.core.method import Method, Outgoing
from polyfed.core.payload import Payload, Value
from polyfed.core.schema import ScalarField, TensorField, TreeField
from polyfed.core.server import Server
from polyfed.core.step import Reply, Step, messages_of, step
from polyfed.errors import PayloadError, RunError

STATE = "secure sum"  # key of a client's secrets in its state, until the masks are removed
MASKED = "masked_"  # prefix of the steps whose reply is masked
ENCRYPTION, MASKING = 0, 1  # rows of a client's keys
SEALED, SELF, PAIRS = "encrypted shares", "own mask", "pairwise masks"  # purposes of secrets

if TYPE_CHECKING:
    Base = Method
else:
    Base = object


class SecureSteps(Base):
    """The part of a secured method that all of them share. It comes before the method's own class."""

    update_norm: ClassVar[float | None] = None  # clients scale their updates down to this norm before masking

    def round(self, server: Server, cohort: Cohort) -> None:
        super().round(server, SecureCohort(self, server, cohort))

    def finish(self, server: Server, everyone: Cohort) -> None:
        super().finish(server, SecureCohort(self, server, everyone))

    @step(up={"keys": TensorField((2, sums.SECRET_BYTES), torch.uint8)})
    def secure_keys(self, client: Client, msg: Payload) -> Reply:
        """Make two pairs of keys and send the public ones."""
        private = [sums.new_secret(), sums.new_secret()]
        client.state[STATE] = {"private": _rows(private)}
        return {"keys": _rows([sums.public_key(key) for key in private])}

    @step(down={"keys": TreeField()}, up={"shares": TreeField()})
    def secure_shares(self, client: Client, msg: Payload) -> Reply:
        """Share the own secrets with all clients, encrypted for each of them."""
        secrets, keys = _secrets(client), _keys(msg)
        private = _bytes_of_rows(secrets["private"])
        if len(keys) < sums.LEAST_CLIENTS or len({key for pair in keys.values() for key in pair}) != 2 * len(keys):
            raise RunError(f"a secure sum needs at least {sums.LEAST_CLIENTS} clients with different keys")
        if keys.get(client.name) != [sums.public_key(key) for key in private]:
            raise RunError("the server distributes other keys for this client than the client sent")
        seed, least = sums.new_secret(), sums.threshold(len(keys))
        shares = zip(
            sums.split_secret(seed, least, len(keys)),
            sums.split_secret(private[MASKING], least, len(keys)),
            strict=True,
        )
        sealed: dict[str, Value] = {}
        for other, parts in zip(sorted(keys), shares, strict=True):
            pair = keys[other]
            key = sums.agreed_secret(private[ENCRYPTION], pair[ENCRYPTION], SEALED)
            sealed[other] = _tensor(sums.seal(key, b"".join(parts), _route(client.name, other)))
        client.state[STATE] = {**secrets, "keys": dict(msg.weights("keys")), "seed": _tensor(seed)}
        return {"shares": sealed}

    @step(down={"alive": ScalarField("text")}, up={"opened": TreeField()})
    def secure_unmask(self, client: Client, msg: Payload) -> Reply:
        """Send, of every client, one share: of its own mask if its reply is in the sum, else of its masking key."""
        secrets, alive = _secrets(client), msg.text("alive").split(",")
        keys, private = _keys(Payload(secrets)), _bytes_of_rows(secrets["private"])
        if len(alive) < sums.threshold(len(keys)) or not set(alive) <= keys.keys() or client.name not in alive:
            raise RunError("the server asks for the masks of a sum of too few clients")
        opened: dict[str, Value] = {}
        sealed = secrets["sealed"]
        for other, content in sealed.items() if isinstance(sealed, Mapping) else ():
            key = sums.agreed_secret(private[ENCRYPTION], keys[other][ENCRYPTION], SEALED)
            parts = sums.unseal(key, _bytes(content), _route(other, client.name))
            opened[other] = _tensor(parts[: sums.SHARE_BYTES] if other in alive else parts[sums.SHARE_BYTES :])
        del client.state[STATE]
        return {"opened": opened}

    def masked_reply(self, client: Client, name: str, msg: Payload) -> Reply:
        """Run a step of the method and mask its reply."""
        secrets, sealed = _secrets(client), msg.weights("sealed")
        keys, private = _keys(Payload(secrets)), _bytes_of_rows(secrets["private"])
        if len(sealed) < sums.threshold(len(keys)) or not set(sealed) <= keys.keys():
            raise RunError("too few clients have shared their secrets for a secure sum")
        received = Payload({key: value for key, value in msg.items() if key != "sealed"})
        client.step = client.step.removeprefix(MASKED)  # the random streams of the step itself
        with rng.seeded(client.seed, "torch", client.name, client.round, client.step):
            reply = getattr(super(), name)(client, received) or {}
        if self.update_norm is not None:
            reply = secure_layout.clipped(reply, received, self.update_norm)
        weights = self.mean_weights()
        assert weights is not None  # `check_aggregation` refuses other methods
        vector = secure_layout.to_vector(reply, messages_of(self, name).up, weights, self, client.profile)
        total = sums.to_fixed(vector, len(keys)) + sums.mask(_bytes(secrets["seed"]), len(vector))
        for other in sealed:
            if other != client.name:
                secret = sums.agreed_secret(private[MASKING], keys[other][MASKING], PAIRS)
                total = total + sums.pairwise_mask(client.name, other, secret, len(vector))
        client.state[STATE] = {**secrets, "sealed": dict(sealed)}
        return {"masked": torch.from_numpy(total.view(np.int64))}


class SecureCohort(Cohort):
    """The clients of a round, of whose replies the server sees the mean only."""

    def __init__(self, method: SecureSteps, server: Server, cohort: Cohort) -> None:
        super().__init__(cohort._door, cohort.ids, cohort._measure)
        self._method, self._server = method, server

    def stream(
        self,
        *steps: Step,
        shared: Mapping[str, Value] | None = None,
        each: Mapping[str, Mapping[str, Value]] | None = None,
        out: Outgoing | None = None,
    ) -> Iterator[tuple[str, Payload]]:
        uploading = [s for s in steps if messages_of(self._method, s.__name__).up]
        if not uploading:
            yield from super().stream(*steps, shared=shared, each=each, out=out)
            return
        if len(uploading) > 1:
            raise RunError("a secure sum covers one step that uploads something")
        method, name = self._method, uploading[0].__name__
        masked_steps = [getattr(method, MASKED + name) if s is uploading[0] else s for s in steps]
        keys = {
            client: reply.tensor("keys") for client, reply in self._part(self.ids).call(method.secure_keys).items()
        }
        sealed = {
            client: reply.weights("shares")
            for client, reply in self._part(keys).call(method.secure_shares, shared={"keys": keys}).items()
        }
        out = out or Outgoing()
        own = {
            client: {
                **out.each.get(client, {}),
                **(each or {}).get(client, {}),
                "sealed": {sender: shares[client] for sender, shares in sealed.items()},
            }
            for client in sealed
        }
        message = Outgoing({**out.shared, **(shared or {})}, own)
        masked = self._part(sealed).call(*masked_steps, out=message)
        least = sums.threshold(len(keys))
        alive = list(masked)
        if len(alive) < least:
            raise TooFewRepliesError(
                f"a secure sum over {len(keys)} clients needs {least} of them, but {len(alive)} answered"
            )
        opened = self._part(alive).call(method.secure_unmask, shared={"alive": ",".join(alive)})
        if len(opened) < least:
            raise TooFewRepliesError(f"the masks of a secure sum need {least} clients, but {len(opened)} answered")
        numbers = _unmasked(
            {client: reply.tensor("masked") for client, reply in masked.items()}, keys, sealed, opened
        )
        schema, profile = messages_of(method, name).up, self._server.profile(alive[0])
        mean = secure_layout.from_vector(sums.from_fixed(numbers), schema, method, profile)
        yield alive[0], self._server.place.payload(mean)

    def _part(self, ids: Any) -> Cohort:
        return Cohort(self._door, tuple(ids), self._measure)


def _unmasked(
    masked: Mapping[str, Tensor],
    keys: Mapping[str, Tensor],
    sealed: Mapping[str, object],
    opened: Mapping[str, Payload],
) -> sums.Numbers:
    """Return the sum of the replies without masks."""
    numbering = {client: number for number, client in enumerate(sorted(keys), 1)}
    total = sum((t.cpu().numpy().view(np.uint64) for t in masked.values()), np.uint64(0))
    numbers: sums.Numbers = np.asarray(total, dtype=np.uint64)
    for client in sealed:
        shares = {numbering[k]: _bytes(reply.weights("opened")[client]) for k, reply in opened.items()}
        secret = sums.recover_secret(shares)
        if client in masked:
            numbers = numbers - sums.mask(secret, len(numbers))
            continue
        for other in masked:  # the client dropped out: the masks that others added for it remain
            pair = sums.agreed_secret(secret, _bytes(keys[other][MASKING]), PAIRS)
            numbers = numbers - sums.pairwise_mask(other, client, pair, len(numbers))
    return numbers


def secured(method: Method, update_norm: float | None = None) -> Method:
    """Return the method with secure sums. Every step that uploads something gets a variant with a masked reply.

    With `update_norm`, clients limit the norm of their updates.
    """
    kind = type(method)
    members: dict[str, Any] = {"__doc__": kind.__doc__, "__module__": kind.__module__, "update_norm": update_norm}
    for name in dir(kind):
        messages = getattr(getattr(kind, name), "messages", None)
        if messages is not None and messages.up:
            members[MASKED + name] = _masked_step(name, messages.down)
    secure_kind: Any = dataclasses.dataclass(frozen=True)(type(kind.__name__, (SecureSteps, kind), members))
    fields = {f.name: getattr(method, f.name) for f in dataclasses.fields(kind)}
    secure_method: Method = secure_kind(**fields)
    return secure_method


def _masked_step(name: str, down: Any) -> Callable[..., Reply]:
    @step(down={**down, "sealed": TreeField()}, up={"masked": TensorField(("numbers",), torch.int64)})
    def masked(self: SecureSteps, client: Client, msg: Payload) -> Reply:
        return self.masked_reply(client, name, msg)

    masked.__name__ = MASKED + name
    return masked


def _route(sender: str, recipient: str) -> str:
    return f"{sender} to {recipient}"


def _secrets(client: Client) -> dict[str, Value]:
    secrets = client.state.get(STATE)
    if not isinstance(secrets, Mapping):
        raise PayloadError("this client has no keys for a secure sum")
    return dict(secrets)


def _keys(message: Payload) -> dict[str, list[bytes]]:
    return {name: _bytes_of_rows(keys) for name, keys in message.weights("keys").items()}


def _tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _rows(contents: list[bytes]) -> Tensor:
    return torch.stack([_tensor(content) for content in contents])


def _bytes(value: Value) -> bytes:
    if not isinstance(value, Tensor) or value.dtype != torch.uint8:
        raise PayloadError("a key or share of a secure sum is not a tensor of bytes")
    return bytes(value.cpu().numpy().tobytes())


def _bytes_of_rows(value: Value) -> list[bytes]:
    if not isinstance(value, Tensor) or value.shape != (2, sums.SECRET_BYTES):
        raise PayloadError("a pair of keys of a secure sum has the wrong shape")
    return [_bytes(row) for row in value]
