"""Events and artifacts of a run, from which figures are drawn. They do not affect the algorithm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from polyfed.core import Payload, Server
from polyfed.core.client import weights_of
from polyfed.methods.dffke.decoder import EmbeddingDecoder, decode
from polyfed.methods.dffke.docking import Snapshots
from polyfed.methods.dffke.messages import Messages, subtree

IMAGES_PER_CLASS = 4  # synthetic images that are saved in every round


def record_docking(server: Server, losses: Sequence[float]) -> None:
    """Record the first and the last loss of the docking layers."""
    server.record("docking", loss=[*losses[:1], *losses[-1:]])


def record_decoder(
    server: Server,
    decoder: EmbeddingDecoder,
    losses: Sequence[float],
    codes: Mapping[str, Tensor],
    clients: Snapshots,
) -> None:
    """Record the decoder's fidelity with the variance of the codes, and save some synthetic images per class."""
    rows, labels = torch.cat(list(codes.values())), torch.cat([_labels(clients[name].targets) for name in codes])
    variance = float(rows.var(0, unbiased=False).mean())
    server.record("decoder", fidelity=[*losses[:1], *losses[-1:]], variance=variance)
    chosen = first_of_each_class(labels, IMAGES_PER_CLASS)
    images = decode(decoder.eval(), weights_of(decoder), rows[chosen])
    server.save_artifact("synthetic", images=F.hardtanh(images, 0.0, 1.0).contiguous(), labels=labels[chosen])


def record_peer_bytes(server: Server, messages: Messages, fields: Iterable[str]) -> None:
    """Record the bytes that pass from client to client through the server."""
    trees = [subtree(message.get(field)) for message in messages.values() for field in fields]
    tensors = [value for tree in trees for value in tree.values() if isinstance(value, Tensor)]
    server.record("peers", bytes=sum(tensor.nbytes for tensor in tensors))


def record_local_training(server: Server, replies: Mapping[str, Payload], tau: float) -> None:
    """Record epochs and training accuracy of the participants, and how many missed the goal `tau`."""
    epochs, accuracy = ([reply.number(name) for reply in replies.values()] for name in ("epochs", "accuracy"))
    server.record("local", epochs=epochs, accuracy=accuracy, missed=sum(a < tau for a in accuracy))


def first_of_each_class(labels: Tensor, number: int) -> Tensor:
    """Return the rows of the first `number` samples of every class, ordered by class."""
    return torch.cat([torch.nonzero(labels == label).flatten()[:number] for label in sorted(set(labels.tolist()))])


def _labels(targets: Tensor) -> Tensor:
    """Return labels, or the most probable classes."""
    return targets.argmax(1) if targets.ndim > 1 else targets
