"""Knowledge exchange at a client: the teacher's outputs, and distillation from them (Eq. 13 and 14)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.core import Client, Payload, Value, rng
from polyfed.core.payload import view
from polyfed.methods.dffke.local_training import exchange_optimizer, keep_optimizer
from polyfed.methods.dffke.messages import round_key, subtree
from polyfed.methods.dffke.replay_index import replay_batches
from polyfed.methods.dffke.synthetic_images import TransferImages
from polyfed.training.endless_batches import cycled, started
from polyfed.training.fit import has_batchnorm
from polyfed.training.random_draws import copied
from polyfed.training.samples import EVALUATION_BATCH

MIN_PROBABILITY = 1e-8
SUM_TOLERANCE = 1e-4  # by which the sum of float32 probabilities may differ from 1
Rows = tuple[str, Tensor]  # a round's key, and rows of a client's images in it


class DistillationBatch(NamedTuple):
    """Images with a teacher's probabilities for them, and where these are in the message."""

    images: Tensor
    targets: Tensor
    field: str  # "targets" for images of the current round, "memory" for past ones
    teacher: str
    rows: Tensor  # in the field's tensor


def number_of_turns(teachers: int, passes: int, least_steps: int, *, replays: bool) -> int:
    """Return the turns of an exchange: some passes over the images, or more if these have too few steps.

    In every turn a student takes two steps per teacher, on current and on past images. Without a replay buffer it
    takes one, and twice as many turns: the number of steps does not depend on the buffer.
    """
    turns = max(least_steps // 2 // max(1, teachers), passes)
    return turns if replays else 2 * turns


def replayed_rows(client: Client, teacher: str, counts: Value, turns: int, batch: int) -> list[Rows]:
    """Return the batches of a teacher's past images that are replayed in this round (B_t of line 17).

    They are drawn from a common random stream, so that every client computes the same batches.
    """
    sizes = {key: int(view(subtree(counts)).number(key)) for key in subtree(counts)}
    stream = partial(rng.generator, client.seed, "review", client.round, teacher)
    batches = replay_batches(sizes, turns, batch, stream)
    rows = copied([rows for _, rows in batches], client.device)
    return [(key, at) for (key, _), at in zip(batches, rows, strict=True)]


@torch.no_grad()
def teacher_outputs(
    client: Client, msg: Payload, images: TransferImages, batch: int, function: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Apply a function to a client's images of this round ("targets") and to those that are replayed ("memory").

    Images are decoded in chunks to save memory.
    """
    now, turns = round_key(client.round), int(msg.number("turns"))
    rows = {"targets": [(now, torch.arange(images.count(now, client.name), device=client.device))]}
    rows["memory"] = replayed_rows(client, client.name, msg.get("review"), turns, batch)
    outputs = {}
    for field, batches in rows.items():
        chunks = [(key, chunk) for key, at in batches for chunk in torch.split(at, EVALUATION_BATCH)]
        if chunks:
            outputs[field] = torch.cat([function(images.images(key, client.name, chunk)) for key, chunk in chunks])
    return outputs


def exchange_batches(client: Client, msg: Payload, images: TransferImages, batch: int) -> Iterator[DistillationBatch]:
    """Yield in every turn a batch of past images of each teacher (Eq. 14), then one of current images (Eq. 13)."""
    now, turns = round_key(client.round), int(msg.number("turns"))
    targets, memory = (
        {teacher: as_probabilities(rows) for teacher, rows in msg.weights(field).items()} if field in msg else {}
        for field in ("targets", "memory")
    )
    current: dict[str, Iterator[tuple[Tensor, Tensor]]] = {}
    past: dict[str, list[tuple[str, Tensor, Tensor]]] = {}  # round, rows of images, rows of outputs
    for teacher in targets:
        rows = torch.arange(images.count(now, teacher), device=client.device)
        current[teacher] = started(cycled(rows, rows, batch, client.stream(f"exchange {teacher}"), turns))
        replayed = replayed_rows(client, teacher, subtree(msg.get("review")).get(teacher), turns, batch)
        for key in dict.fromkeys([now, *(key for key, _ in replayed)]):
            images.prepare(key, teacher)
        ends = torch.tensor([len(rows) for _, rows in replayed]).cumsum(0).tolist()
        past[teacher] = [
            (key, rows, torch.arange(end - len(rows), end, device=client.device))
            for (key, rows), end in zip(replayed, ends, strict=True)
        ]
    for turn in range(turns):
        for teacher, replay in past.items():
            if replay and images.count(replay[turn][0], teacher):
                key, rows, at = replay[turn]
                outputs = memory[teacher][at]
                yield DistillationBatch(images.images(key, teacher, rows), outputs, "memory", teacher, at)
        for teacher, batches in current.items():
            at, _ = next(batches)
            yield DistillationBatch(images.images(now, teacher, at), targets[teacher][at], "targets", teacher, at)


def kl_divergence(logits: Tensor, targets: Tensor) -> Tensor:
    """Return KL(teacher || student): summed over classes, mean over the batch."""
    return F.kl_div(logits.log_softmax(1), targets, reduction="batchmean")


def as_probabilities(rows: Tensor) -> Tensor:
    """Renormalise rows that privacy noise was added to; return rows that are probabilities unchanged."""
    valid = (rows >= 0).all(1, keepdim=True) & ((rows.sum(1, keepdim=True) - 1).abs() < SUM_TOLERANCE)
    positive = rows.clamp(min=MIN_PROBABILITY)
    return torch.where(valid, rows, positive / positive.sum(1, keepdim=True))


def learn(
    client: Client,
    modules: Sequence[nn.Module],
    batches: Iterable[DistillationBatch],
    loss: Callable[[DistillationBatch], Tensor],
    lr: float,
) -> None:
    """Train the client's model, and modules after it, with a new Adam. Keep its moments for local training."""
    optimizer = exchange_optimizer(modules, lr)
    distill(modules, batches, loss, optimizer)
    keep_optimizer(client, optimizer)


def distill(
    modules: Sequence[nn.Module],
    batches: Iterable[DistillationBatch],
    loss: Callable[[DistillationBatch], Tensor],
    optimizer: torch.optim.Optimizer,
) -> int:
    """Train modules, one step per batch, and return the number of steps.

    Batches of one image are skipped if there is a BatchNorm, which cannot be trained on them.
    """
    for module in modules:
        module.train()
    min_batch = 2 if has_batchnorm(modules) else 1
    steps = 0
    for batch in batches:
        if len(batch.images) < min_batch:
            continue
        optimizer.zero_grad(set_to_none=True)
        loss(batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        steps += 1
    optimizer.zero_grad(set_to_none=True)
    return steps
