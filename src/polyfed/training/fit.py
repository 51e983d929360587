"""The one local training loop that every method uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from torch import Tensor, nn

from polyfed.training.samples import Samples

# A loss gives the task's own loss alone, or that followed by the method's further terms. All are minimised; the
# task's own is what curves show, so that methods can be compared by it.
Loss = Callable[[Tensor, Tensor], Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True)
class TrainSettings:
    """How a client trains, unless its method says otherwise."""

    epochs: int = 1
    steps: int | None = None  # stop after this many steps, going round the data as often as needed
    batch_size: int = 10
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None


@dataclass(frozen=True)
class Fit:
    """What a training run did: steps taken, samples seen, and the mean of the task's own loss over them."""

    steps: int
    samples: int
    loss: float
    aside: bool = False  # what was trained is not the client's model but something beside it


def make_optimizer(parameters: Iterable[nn.Parameter], settings: TrainSettings) -> torch.optim.Optimizer:
    """A new optimiser (R8). The fused kernels step all parameters at once."""
    trained = [p for p in parameters if p.requires_grad]
    if settings.optimizer == "adam":
        return torch.optim.Adam(trained, lr=settings.lr, weight_decay=settings.weight_decay, fused=True)
    return torch.optim.SGD(
        trained, lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay, fused=True
    )


def has_batchnorm(modules: Iterable[nn.Module]) -> bool:
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for module in modules for m in module.modules())


def fit(
    modules: Iterable[nn.Module],
    loss: Loss,
    samples: Samples,
    settings: TrainSettings,
    shuffle: torch.Generator,
    *,
    parameters: Iterable[nn.Parameter] | None = None,
    adjust: Callable[[], None] | None = None,
) -> Fit:
    """Train `parameters` (default: all of `modules`) on shuffled batches of `samples`.

    `adjust` runs after every backward pass and before the step, for methods that correct gradients.
    """
    modules = list(modules)
    chosen = (p for m in modules for p in m.parameters()) if parameters is None else parameters
    trained = [p for p in chosen if p.requires_grad]
    optimizer = make_optimizer(trained, settings)
    for module in modules:
        module.train()
    losses: list[Tensor] = []
    sizes: list[int] = []
    for x, y in _epochs(samples, settings, shuffle, drop_single=has_batchnorm(modules)):
        optimizer.zero_grad(set_to_none=True)
        terms = loss(x, y)
        task = terms if isinstance(terms, Tensor) else terms[0]
        objective = task if isinstance(terms, Tensor) else reduce(torch.add, terms)
        objective.backward()  # type: ignore[no-untyped-call]
        if settings.clip_norm is not None:
            _clip(trained, settings.clip_norm)
        if adjust is not None:
            adjust()
        optimizer.step()
        losses.append(task.detach())
        sizes.append(len(y))
    optimizer.zero_grad(set_to_none=True)
    if not sizes:
        return Fit(0, 0, float("nan"))
    mean = torch.stack(losses).double() @ torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    return Fit(len(sizes), sum(sizes), float(mean))


def _clip(parameters: Iterable[nn.Parameter], norm: float) -> None:
    """Shorten the gradient to `norm`. Few steps need it, and to find out costs a third of doing it."""
    parameters = list(parameters)
    norms = [torch.linalg.vector_norm(p.grad) for p in parameters if p.grad is not None]
    if norms and torch.linalg.vector_norm(torch.stack(norms)) > norm:
        nn.utils.clip_grad_norm_(parameters, norm)


def _epochs(
    samples: Samples, settings: TrainSettings, shuffle: torch.Generator, *, drop_single: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    left = settings.steps
    epoch = 0
    while left is not None or epoch < settings.epochs:
        epoch += 1
        taken = 0
        for batch in samples.batches(settings.batch_size, shuffle=shuffle, drop_single=drop_single):
            if left is not None and taken >= left:
                return
            yield batch
            taken += 1
        if taken == 0:
            return
        left = None if left is None else left - taken
