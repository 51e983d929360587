"""Load the target of an attack from a run folder: the rows that a client uploaded, and the images behind them."""

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
from polyfed.guards.protections import steps_by_field
from polyfed.runs.checkpoint import CLIENT_STATES, Checkpoints
from polyfed.runs.folder import RunFolder
from polyfed.runs.state_store import FolderStore
from polyfed.training import Samples
from polyfed.training.samples import EVALUATION_BATCH, model_inputs


@dataclass(frozen=True)
class Target:
    """The rows of a field in the last upload of a client that holds the field."""

    field: str
    round: int
    model: str  # which model of the client the attacker has
    rows: Tensor  # as uploaded
    clean_rows: Tensor  # the same rows without clipping and noise
    images: Tensor  # the image behind each row, in [0, 1]; for a class mean, the mean image
    labels: Tensor  # the class of each row
    group_sizes: tuple[int, ...]  # number of samples behind a row


def find_target(
    folder: RunFolder, client: Client, field: str | None, protected: Container[str], method: Method
) -> Target:
    """Return the latest upload with rows that can be attacked. Raise InputError if there is none."""
    files = sorted(folder.uploads(client.name), key=lambda path: (path.name.split("-")[0], path.stat().st_mtime_ns))
    attackable = {name for name, steps in steps_by_field(method).items() if _has_sample_rows(method, name, steps)}
    if not files:
        raise InputError(
            f"{folder.path} has no recorded uploads of client {client.name}; run it with "
            f"evaluate.record_uploads=[{client.name}]"
        )
    if field is not None and field in steps_by_field(method) and field not in attackable:
        raise InputError(
            f"field '{field}' has no rows of the client's samples or their class means, which the attack needs"
            f"; {nearest(field, attackable)}"
        )
    uploaded: dict[str, None] = {}
    for path in reversed(files):
        reply = decode(path.read_bytes())
        uploaded |= dict.fromkeys(reply)
        for name in [field] if field is not None else [name for name in reply if name in attackable]:
            if name in reply and _width(reply[name]) in (client.profile.features, client.profile.classes):
                usable = Payload({n: value for n, value in reply.items() if n == name or n not in protected})
                return _target(folder, client, name, int(path.name.split("-")[0]), usable)
    if field is not None and field not in uploaded:
        raise InputError(f"client {client.name} sent no field '{field}'; {nearest(field, uploaded)}")
    raise InputError(
        f"client {client.name} sent {', '.join(uploaded) or 'nothing'}; the attack needs rows of samples, as wide as "
        f"the features ({client.profile.features}) or outputs ({client.profile.classes}) of its model"
        + (f", which '{field}' does not hold" if field else "")
    )


def _has_sample_rows(method: Method, field: str, steps: Sequence[str]) -> bool:
    """Return whether each row of a field is computed from samples of its own (one sample or one class)."""
    return all(getattr(type(method), step).messages.up[field].has_own_rows(method) for step in steps)


def _width(value: Value) -> int | None:
    values = value.values if isinstance(value, ClassTable) else value
    rows = isinstance(values, Tensor) and values.ndim == 2 and values.is_floating_point() and len(values) > 0
    return values.shape[1] if rows and isinstance(values, Tensor) else None


def _target(folder: RunFolder, client: Client, field: str, number: int, reply: Payload) -> Target:
    model = load_model(folder, client, reply)
    value = reply[field]
    images = model_inputs(client.train.inputs)
    if isinstance(value, ClassTable):
        members = [(client.train.labels == c).nonzero()[:, 0] for c in value.classes.tolist()]
        sample_rows = rows_of(client, client.train, value.width)
        clean_rows = torch.stack([sample_rows[indices].mean(0) for indices in members])
        mean_images = torch.stack([images[indices].mean(0) for indices in members])
        sizes = tuple(len(indices) for indices in members)
        return Target(field, number, model, value.values, clean_rows, mean_images, value.classes, sizes)
    rows = reply.tensor(field)
    if len(rows) != len(client.train):
        raise InputError(
            f"field '{field}' has {len(rows)} rows and client {client.name} {len(client.train)} samples, so rows "
            "cannot be assigned to images"
        )
    clean_rows = rows_of(client, client.train, rows.shape[1])
    return Target(field, number, model, rows, clean_rows, images, client.train.labels, (1,))


def load_model(folder: RunFolder, client: Client, reply: Payload) -> str:
    """Load the model that the attacker has: the uploaded one if it was sent unprotected, else the final one."""
    keys = client.model.state_dict().keys()
    for name, value in reply.items():
        if isinstance(value, dict) and value.keys() == keys:
            client.load(reply.weights(name))
            return f"uploaded as '{name}'"
    last, _, _ = Checkpoints(folder.checkpoint_folder).load_latest()
    if last is None or client.name not in last.ledger.versions:
        raise InputError(f"{folder.path} has no checkpoint with the model of client {client.name}")
    states = FolderStore(folder.checkpoint_folder / CLIENT_STATES)
    saved = decode(states.read(client.name, last.ledger.versions[client.name]))
    client.load(saved.weights("model"))
    return f"after round {last.round}"


def rows_of(client: Client, samples: Samples, width: int) -> Tensor:
    """Return the model's features of every sample, or its outputs if rows have their width."""
    vector: Callable[[Tensor], Tensor] = client.model.features if width == client.profile.features else client.model
    client.model.eval()
    with torch.no_grad():
        return torch.cat([vector(x) for x, _ in samples.batches(EVALUATION_BATCH)])


def class_mean_images(samples: Samples, labels: Tensor) -> Tensor:
    """Return for every label the mean image of its class, or of all images if the class has no samples."""
    images = model_inputs(samples.inputs)
    means = {c: images[samples.labels == c].mean(0) for c in set(samples.labels.tolist())}
    return torch.stack([means.get(label, images.mean(0)) for label in labels.tolist()])


def auxiliary_data(
    client: Client,
    samples: Samples,
    width: int,
    group_sizes: Sequence[int],
    generator: torch.Generator,
    clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the attacker's own rows and images: single samples, or means over random samples of a class.

    `clip` clips the rows of samples before the mean, as the client does.
    """
    rows, images = rows_of(client, samples, width), model_inputs(samples.inputs)
    if clip is not None:
        rows = clip_rows(rows, clip)
    if set(group_sizes) == {1}:
        return rows, images
    means: list[tuple[Tensor, Tensor]] = []
    by_class = [(samples.labels == c).nonzero()[:, 0] for c in sorted(set(samples.labels.tolist()))]
    for number in range(max(len(samples), 500)):
        members = by_class[number % len(by_class)]
        size = group_sizes[int(torch.randint(len(group_sizes), (), generator=generator))]
        chosen = members[torch.randint(len(members), (min(size, len(members)),), generator=generator)]
        means.append((rows[chosen].mean(0), images[chosen].mean(0)))
    return torch.stack([row for row, _ in means]), torch.stack([image for _, image in means])


def load_run(path: Path, *, trust: bool = False) -> tuple[RunFolder, SimulatedFederation]:
    """Return a run folder and the federation built from its config. `trust` allows code of another user's folder."""
    from polyfed import api
    from polyfed.federation import simulation

    opened = api.open_existing_run(path, trust=trust, imports=True)
    return opened.folder, simulation.build_federation(opened.config)


def choose_client(federation: SimulatedFederation, client: str | None, path: Path) -> str:
    """Return the name of the client to attack; by default, the first client whose uploads were recorded."""
    recorded = sorted(federation.recorded_clients, key=lambda name: federation.positions[name])
    name = client if client is not None else (recorded[0] if recorded else federation.names[0])
    if name not in federation.positions:
        raise InputError(f"there is no client called '{name}' in {path}; {nearest(name, federation.names)}")
    return name
