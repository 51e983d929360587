"""What there is to attack in a run folder: the rows that left a client, and the pictures behind them."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from polyfed.core.class_tables import ClassTable
from polyfed.core.client import Client
from polyfed.core.codec import decode
from polyfed.core.method import Method
from polyfed.core.payload import Payload, Value
from polyfed.errors import InputError, nearest
from polyfed.federation.simulation import SimulatedFederation
from polyfed.guards.clipping import clip_rows
from polyfed.guards.protections import senders
from polyfed.runs.checkpoint import CLIENT_STATES, Checkpoints
from polyfed.runs.folder import RunFolder
from polyfed.runs.state_store import FolderStore
from polyfed.training import Samples
from polyfed.training.samples import EVALUATION_BATCH, as_floats


@dataclass(frozen=True)
class Target:
    """Rows that left a client with its last reply that holds the field."""

    field: str
    round: int
    model: str  # which model of the client the attacker has
    rows: Tensor  # as they left
    clean: Tensor  # what the client's model makes of its samples, without clipping and noise
    pictures: Tensor  # behind every row, in [0, 1]; of a class mean the mean picture
    labels: Tensor  # the class of every row
    groups: tuple[int, ...]  # from how many samples rows were made


def find(folder: RunFolder, client: Client, field: str | None, protected: Container[str], method: Method) -> Target:
    """The newest reply with rows that can be turned into pictures; InputError says what is missing."""
    kept = sorted(folder.uploads(client.name), key=lambda path: (path.name.split("-")[0], path.stat().st_mtime_ns))
    of_samples = {name for name, steps in senders(method).items() if _of_samples(method, name, steps)}
    if not kept:
        raise InputError(
            f"{folder.path} kept no replies of client {client.name}; run it with "
            f"evaluate.record_uploads=[{client.name}], which keeps them as they left"
        )
    if field is not None and field in senders(method) and field not in of_samples:
        raise InputError(
            f"field '{field}' has no rows of the client's samples or their class means, which the attack needs"
            f"; {nearest(field, of_samples)}"
        )
    seen: dict[str, None] = {}
    for path in reversed(kept):
        reply = decode(path.read_bytes())
        seen |= dict.fromkeys(reply)
        for name in [field] if field is not None else [name for name in reply if name in of_samples]:
            if name in reply and _width(reply[name]) in (client.profile.features, client.profile.classes):
                bare = Payload({n: value for n, value in reply.items() if n == name or n not in protected})
                return _target(folder, client, name, int(path.name.split("-")[0]), bare)
    if field is not None and field not in seen:
        raise InputError(f"client {client.name} sent no field '{field}'; {nearest(field, seen)}")
    raise InputError(
        f"client {client.name} sent {', '.join(seen) or 'nothing'}; the attack needs rows of samples, as wide as its "
        f"model's features ({client.profile.features}) or outputs ({client.profile.classes})"
        + (f", which '{field}' does not hold" if field else "")
    )


def _of_samples(method: Method, field: str, steps: Sequence[str]) -> bool:
    """Whether rows of a field are made of the client's samples, each of its own."""
    return all(getattr(type(method), step).messages.up[field].has_own_rows(method) for step in steps)


def _width(value: Value) -> int | None:
    values = value.values if isinstance(value, ClassTable) else value
    rows = isinstance(values, Tensor) and values.ndim == 2 and values.is_floating_point() and len(values) > 0
    return values.shape[1] if rows and isinstance(values, Tensor) else None


def _target(folder: RunFolder, client: Client, field: str, number: int, reply: Payload) -> Target:
    model = _load_model(folder, client, reply)
    value = reply[field]
    floats = as_floats(client.train.images)
    if isinstance(value, ClassTable):
        here = [(client.train.labels == c).nonzero()[:, 0] for c in value.classes.tolist()]
        every = rows_of(client, client.train, value.width)
        clean = torch.stack([every[at].mean(0) for at in here])
        pictures = torch.stack([floats[at].mean(0) for at in here])
        groups = tuple(len(at) for at in here)
        return Target(field, number, model, value.values, clean, pictures, value.classes, groups)
    rows = reply.tensor(field)
    if len(rows) != len(client.train):
        raise InputError(
            f"field '{field}' has {len(rows)} rows and client {client.name} {len(client.train)} samples, so it is "
            "not known which picture is behind which row"
        )
    clean = rows_of(client, client.train, rows.shape[1])
    return Target(field, number, model, rows, clean, floats, client.train.labels, (1,))


def _load_model(folder: RunFolder, client: Client, reply: Payload) -> str:
    """Give the client the model that the attacker has: the one it sent along bare, else the one the run left it."""
    own = client.model.state_dict().keys()
    for name, value in reply.items():
        if isinstance(value, dict) and value.keys() == own:
            client.load(reply.weights(name))
            return f"sent along as '{name}'"
    last, _, _ = Checkpoints(folder.checkpoint_folder).load_latest()
    if last is None or client.name not in last.ledger.versions:
        raise InputError(f"{folder.path} has no checkpoint with the model of client {client.name}")
    states = FolderStore(folder.checkpoint_folder / CLIENT_STATES)
    saved = decode(states.read(client.name, last.ledger.versions[client.name]))
    client.load(saved.weights("model"))
    return f"as it was after round {last.round}"


def rows_of(client: Client, samples: Samples, width: int) -> Tensor:
    """What the client's model makes of every sample: features, or outputs where rows are as wide as those."""
    vector: Callable[[Tensor], Tensor] = client.model.features if width == client.profile.features else client.model
    client.model.eval()
    with torch.no_grad():
        return torch.cat([vector(x) for x, _ in samples.batches(EVALUATION_BATCH)])


def by_class(samples: Samples, labels: Tensor) -> Tensor:
    """For every label the mean picture of its class; of a class that is not among the samples, the mean of all."""
    pictures = as_floats(samples.images)
    means = {c: pictures[samples.labels == c].mean(0) for c in set(samples.labels.tolist())}
    return torch.stack([means.get(label, pictures.mean(0)) for label in labels.tolist()])


def auxiliary(
    client: Client,
    samples: Samples,
    width: int,
    groups: Sequence[int],
    stream: torch.Generator,
    clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The attacker's own rows and pictures: samples, or means of samples of a class where that is what left.

    Samples are clipped before the mean where a client does so.
    """
    rows, pictures = rows_of(client, samples, width), as_floats(samples.images)
    if clip is not None:
        rows = clip_rows(rows, clip)
    if set(groups) == {1}:
        return rows, pictures
    made: list[tuple[Tensor, Tensor]] = []
    held = [(samples.labels == c).nonzero()[:, 0] for c in sorted(set(samples.labels.tolist()))]
    for turn in range(max(len(samples), 500)):
        of_class = held[turn % len(held)]
        size = groups[int(torch.randint(len(groups), (), generator=stream))]
        chosen = of_class[torch.randint(len(of_class), (min(size, len(of_class)),), generator=stream)]
        made.append((rows[chosen].mean(0), pictures[chosen].mean(0)))
    return torch.stack([row for row, _ in made]), torch.stack([picture for _, picture in made])


def run_of(path: Path) -> tuple[RunFolder, SimulatedFederation]:
    """A run folder and the federation that it is of."""
    from polyfed import api
    from polyfed.federation import simulation

    folder = RunFolder(path)
    return folder, simulation.build_federation(api.read_config(folder))
