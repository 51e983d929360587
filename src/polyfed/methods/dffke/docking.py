"""The server's training in DFFKE: docking layers into one space, and a decoder that finds its way back from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.training.cycle import cycled
from polyfed.training.fit import TrainSettings, make_optimizer

Discrepancy = Literal["none", "kl", "mae", "mse"]
KL_SCALE = 0.1  # of the divergence as discrepancy, which has no bound (Table 8)


@dataclass(frozen=True)
class ClientSnapshot:
    """A client at the server: its model cut in two, frozen and in evaluation mode, and its docking layer."""

    encoder: nn.Module
    classifier: nn.Module
    docking: nn.Linear


def fit_docking(
    parties: Mapping[str, ClientSnapshot],
    embeddings: Mapping[str, Tensor],
    targets: Mapping[str, Tensor],
    head: nn.Linear,
    *,
    iterations: int,
    lr: float,
    weight_decay: float,
) -> list[float]:
    """Eq. 11: docking layers and one head that together tell classes; the mean loss over clients by iteration.

    An iteration is a step for every client in turn, on all of its rows. Targets are labels or probabilities.
    """
    trained = [*(p for party in parties.values() for p in party.docking.parameters()), *head.parameters()]
    optimizer = make_optimizer(trained, TrainSettings(optimizer="adam", lr=lr, weight_decay=weight_decay))
    course = []
    for _ in range(iterations):
        losses = []
        for name, party in parties.items():
            optimizer.zero_grad(set_to_none=True)
            z, target = head(party.docking(embeddings[name])), targets[name]
            soft = target.is_floating_point()
            loss = F.kl_div(z.log_softmax(1), target, reduction="batchmean") if soft else F.cross_entropy(z, target)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach())
        course.append(float(torch.stack(losses).mean()))
    return course


def fit_decoder(
    decoder: nn.Module,
    parties: Mapping[str, ClientSnapshot],
    codes: Mapping[str, Tensor],
    streams: Mapping[str, torch.Generator],
    *,
    iterations: int,
    batch: int,
    lr: float,
    discrepancy: Discrepancy = "none",
) -> list[float]:
    """Eq. 12: images from which every client's encoder gets the codes back; the fidelity loss by iteration.

    Only the decoder learns. An iteration is a step for every client in turn, on a batch of its codes; a single code
    is left out, on which norms cannot be trained.
    """
    optimizer = make_optimizer(decoder.parameters(), TrainSettings(optimizer="adam", lr=lr))
    taken = {name: cycled(rows, rows, batch, streams[name]) for name, rows in codes.items() if len(rows) > 1}
    decoder.train()
    course = []
    for _ in range(iterations):
        losses = []
        for name, batches in taken.items():
            wanted, _ = next(batches)
            if len(wanted) < 2:
                continue
            optimizer.zero_grad(set_to_none=True)
            images = decoder(wanted)
            features = parties[name].encoder(images)
            loss = F.mse_loss(parties[name].docking(features), wanted)
            losses.append(loss.detach())
            if discrepancy != "none" and len(parties) > 1:
                student = _another(name, parties, streams[name])
                loss = loss - _apart(parties[name].classifier(features), _logits(student, images), discrepancy)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if losses:
            course.append(float(torch.stack(losses).mean()))
    optimizer.zero_grad(set_to_none=True)
    return course


def _logits(party: ClientSnapshot, images: Tensor) -> Tensor:
    logits: Tensor = party.classifier(party.encoder(images))
    return logits


def _another(name: str, parties: Mapping[str, ClientSnapshot], stream: torch.Generator) -> ClientSnapshot:
    others = [party for other, party in parties.items() if other != name]
    return others[int(torch.randint(len(others), (), generator=stream))]


def _apart(teacher: Tensor, student: Tensor, measure: Discrepancy) -> Tensor:
    """F of Eq. 4, by which a teacher and a student differ; the decoder is to make it large."""
    if measure == "kl":
        return KL_SCALE * F.kl_div(
            student.log_softmax(1), teacher.log_softmax(1), reduction="batchmean", log_target=True
        )
    distance = F.l1_loss if measure == "mae" else F.mse_loss
    return distance(student.softmax(1), teacher.softmax(1))
