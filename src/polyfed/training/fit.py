"""The local training loop that all methods use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from torch import Tensor, nn

from polyfed.training.optimizers import SGD, Adam
from polyfed.training.samples import Samples

# A loss returns the task loss, or the task loss followed by further terms of the method. Their sum is minimised.
# Training curves show the task loss only, so that methods can be compared.
Loss = Callable[[Tensor, Tensor], Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True)
class TrainSettings:
    """Settings of local training, unless the method overrides them."""

    epochs: int = 1
    steps: int | None = None  # stop after this many steps, repeating epochs as needed
    batch_size: int = 10
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None


@dataclass(frozen=True)
class Fit:
    """The outcome of a training run: steps, samples, and the mean task loss over the samples."""

    steps: int
    samples: int
    loss: float
    aside: bool = False  # another module was trained than the client's model


def make_optimizer(parameters: Iterable[nn.Parameter], settings: TrainSettings) -> torch.optim.Optimizer:
    """Return a new optimiser with fused kernels, which step all parameters at once."""
    trained = [p for p in parameters if p.requires_grad]
    if settings.optimizer == "adam":
        return Adam(trained, lr=settings.lr, weight_decay=settings.weight_decay, fused=True)
    return SGD(trained, lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay, fused=True)


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
    optimizer: torch.optim.Optimizer | None = None,
) -> Fit:
    """Train `parameters` (default: all of `modules`) on shuffled batches of `samples`.

    `adjust` runs after every backward pass and before the optimiser step, for methods that correct gradients.
    `optimizer` is an optimiser of these parameters that continues from its state; by default a new one is made.
    """
    modules = list(modules)
    chosen = (p for m in modules for p in m.parameters()) if parameters is None else parameters
    trained = [p for p in chosen if p.requires_grad]
    optimizer = make_optimizer(trained, settings) if optimizer is None else optimizer
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
    """Clip the gradient norm. The check costs a third of `clip_grad_norm_`, and few steps need clipping."""
    parameters = list(parameters)
    norms = [torch.linalg.vector_norm(p.grad) for p in parameters if p.grad is not None]
    if norms and torch.linalg.vector_norm(torch.stack(norms)) > norm:
        nn.utils.clip_grad_norm_(parameters, norm)


def _epochs(
    samples: Samples, settings: TrainSettings, shuffle: torch.Generator, *, drop_single: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of all epochs, or of the given number of steps."""
    remaining = settings.steps
    epoch = 0
    while remaining is not None or epoch < settings.epochs:
        epoch += 1
        taken = 0
        for batch in samples.batches(settings.batch_size, shuffle=shuffle, drop_single=drop_single):
            if remaining is not None and taken >= remaining:
                return
            yield batch
            taken += 1
        if taken == 0:
            return
        remaining = None if remaining is None else remaining - taken
