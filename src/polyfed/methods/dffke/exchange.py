"""A student that learns from several teachers' answers, one step per batch (DFFKE, Eq. 13 and 14)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.training.fit import TrainSettings, has_batchnorm, make_optimizer
from polyfed.training.samples import EVALUATION_BATCH

Direction = Literal["forward", "reverse", "jeffreys"]
SMALLEST = 1e-8  # probability of a teacher, whose logarithm is taken
ROUNDING = 1e-4  # by which probabilities in single precision may miss 1


class Lesson(NamedTuple):
    """Images, what a teacher says about them, and where it puts them in the common space, if that is learned too."""

    images: Tensor
    target: Tensor
    code: Tensor | None = None


def as_probabilities(rows: Tensor) -> Tensor:
    """Rows that noise was added to, as probabilities again; rows that are such already stay as they are."""
    sound = (rows >= 0).all(1, keepdim=True) & ((rows.sum(1, keepdim=True) - 1).abs() < ROUNDING)
    above = rows.clamp(min=SMALLEST)
    return torch.where(sound, rows, above / above.sum(1, keepdim=True))


def divergence(logits: Tensor, target: Tensor, direction: Direction = "forward") -> Tensor:
    """Between a teacher's probabilities T and S = softmax(logits): summed over classes, mean over the batch.

    forward: KL(T || S), with gradient (S - T) / B for the logits; reverse: KL(S || T); jeffreys: their sum.
    """
    student, teacher = logits.log_softmax(1), target.clamp(min=SMALLEST).log()
    forward = F.kl_div(student, target, reduction="batchmean")
    reverse = F.kl_div(teacher, student, reduction="batchmean", log_target=True)
    return {"forward": forward, "reverse": reverse, "jeffreys": forward + reverse}[direction]


@torch.no_grad()
def answers(
    encoder: nn.Module, classifier: nn.Module, pictures: Callable[[Tensor], Tensor], rows: Tensor
) -> tuple[Tensor, Tensor]:
    """A frozen teacher's probabilities and features of pictures by their rows, made as they are needed."""
    told, features = [], []
    for at in torch.split(rows, EVALUATION_BATCH):
        features.append(encoder(pictures(at)))
        told.append(classifier(features[-1]).softmax(1))
    return torch.cat(told), torch.cat(features)


def learn(
    encoder: nn.Module,
    classifier: nn.Module,
    docking: nn.Module | None,
    lessons: Iterable[Lesson],
    settings: TrainSettings,
    *,
    direction: Direction,
    frozen_norms: bool,
) -> int:
    """One step of a new optimiser for every lesson; how many steps that were.

    Where lessons come with codes, the docking layer brings the student's features to them and learns as well.
    """
    modules = [encoder, classifier, *([docking] if docking is not None else [])]
    optimizer = make_optimizer((p for module in modules for p in module.parameters()), settings)
    for module in modules:
        module.train()
        for part in module.modules() if frozen_norms else ():
            part.train(not isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training)
    least = 2 if has_batchnorm(modules) and not frozen_norms else 1
    steps = 0
    for images, target, code in lessons:
        if len(images) < least:
            continue
        optimizer.zero_grad(set_to_none=True)
        features = encoder(images)
        loss = divergence(classifier(features), as_probabilities(target), direction)
        if docking is not None and code is not None:
            loss = loss + F.mse_loss(docking(features), code)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        steps += 1
    optimizer.zero_grad(set_to_none=True)
    return steps
