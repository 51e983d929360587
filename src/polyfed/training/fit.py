"""The local training loop that all methods use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor, nn

from polyfed import profiling
from polyfed.training.optimizers import SGD, Adam
from polyfed.training.precision import Precision, use_precision
from polyfed.training.random_draws import Draw, batch_sizes, drawn_ahead
from polyfed.training.samples import Samples

# A loss returns the task loss, or the task loss followed by further terms of the method. Their sum is minimised.
# Training curves show the task loss only, so that methods can be compared.
# With `draw`, it also receives the random tensors of its step.
Loss = Callable[..., Tensor | tuple[Tensor, ...]]


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
    precision: Precision = "fp32"
    compile: bool = False  # applied to models when they are built
    micro_batch: int | None = None  # samples per forward and backward pass; None: the whole batch


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
    draw: Draw | None = None,
) -> Fit:
    """Train `parameters` (default: all of `modules`) on shuffled batches of `samples`.

    `adjust` runs after every backward pass and before the optimiser step, for methods that correct gradients.
    `optimizer` is an optimiser of these parameters that continues from its state; by default a new one is made.
    `draw` returns random tensors from the size of a batch, which are passed to the loss after the batch.
    """
    modules = list(modules)
    chosen = (p for m in modules for p in m.parameters()) if parameters is None else parameters
    trained = [p for p in chosen if p.requires_grad]
    optimizer = make_optimizer(trained, settings) if optimizer is None else optimizer
    for module in modules:
        module.train()
    losses: list[Tensor] = []
    sizes: list[int] = []
    drop_single = has_batchnorm(modules)

    def step(batch: Sequence[Tensor]) -> Tensor:
        """Train on one batch and return its task loss."""
        optimizer.zero_grad(set_to_none=True)
        if settings.micro_batch is not None and len(batch[1]) > settings.micro_batch:
            task = accumulate_gradients(loss, batch, settings, min_size=2 if drop_single else 1)
        else:
            task = compute_gradients(loss, batch, settings)
        if settings.clip_norm is not None:
            _clip(trained, settings.clip_norm)
        if adjust is not None:
            adjust()
        optimizer.step()
        return task

    for batch in _epochs(samples, settings, shuffle, draw, drop_single=drop_single):
        with profiling.timed("train"):
            losses.append(step(batch))
        sizes.append(len(batch[1]))
    optimizer.zero_grad(set_to_none=True)
    if not sizes:
        return Fit(0, 0, float("nan"))
    mean = torch.stack(losses).cpu().double() @ torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    return Fit(len(sizes), sum(sizes), float(mean))


def compute_gradients(loss: Loss, batch: Sequence[Tensor], settings: TrainSettings, weight: float = 1.0) -> Tensor:
    """Run the forward and the backward pass of a batch. Return the task loss, without gradient."""
    with use_precision(settings.precision, batch[1].device):
        terms = loss(*batch)
        task = terms if isinstance(terms, Tensor) else terms[0]
        objective = task if isinstance(terms, Tensor) else reduce(torch.add, terms)
    if weight != 1.0:
        objective = objective * weight
    backward(objective)
    return task.detach()


_ONE = torch.ones(())


def backward(objective: Tensor) -> None:
    """Compute gradients as `Tensor.backward` does. On a CPU, leave out its checks, which take longer than a layer."""
    if objective.ndim or objective.dtype != torch.float32 or objective.device.type != "cpu":
        objective.backward()  # type: ignore[no-untyped-call]
        return
    engine: Any = torch.autograd.Variable._execution_engine
    engine.run_backward((objective,), (_ONE,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def accumulate_gradients(loss: Loss, batch: Sequence[Tensor], settings: TrainSettings, *, min_size: int) -> Tensor:
    """Add up the gradients of parts of a batch, which need less memory than the whole. Return the mean task loss.

    Means over the batch are means over the parts, weighted by their sizes. BatchNorm sees one part at a time.
    """
    size = len(batch[1])
    count = min(-(-size // (settings.micro_batch or size)), max(1, size // min_size))
    by_sample = [tensor.tensor_split(count) if len(tensor) == size else [tensor] * count for tensor in batch]
    losses = []
    for part in zip(*by_sample, strict=True):
        weight = len(part[1]) / size
        losses.append(compute_gradients(loss, part, settings, weight) * weight)
    return torch.stack(losses).sum()


def _clip(parameters: Iterable[nn.Parameter], norm: float) -> None:
    """Clip the gradient norm. The check costs a third of `clip_grad_norm_`, and few steps need clipping."""
    parameters = list(parameters)
    gradients = [p.grad for p in parameters if p.grad is not None]
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    if not norms:
        return
    total = torch.linalg.vector_norm(torch.stack(norms))
    if total.device.type != "cpu":  # the same without a check, which would wait for the device in every step
        factor = (norm / (total + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, torch.where(total > norm, factor, torch.ones_like(factor)))
    elif total > norm:
        nn.utils.clip_grad_norm_(parameters, norm)


def _epochs(
    samples: Samples, settings: TrainSettings, shuffle: torch.Generator, draw: Draw | None, *, drop_single: bool
) -> Iterator[tuple[Tensor, ...]]:
    """Yield the batches of all epochs, or of the given number of steps, each with its random tensors."""
    remaining = settings.steps
    epoch = 0
    while remaining is not None or epoch < settings.epochs:
        epoch += 1
        taken = 0
        drawn: Iterator[tuple[Tensor, ...]] = itertools.repeat(())
        if draw is not None:
            sizes = batch_sizes(len(samples), settings.batch_size, drop_single=drop_single)[:remaining]
            drawn = drawn_ahead(draw, sizes, samples.labels.device)
        for batch in samples.batches(settings.batch_size, shuffle=shuffle, drop_single=drop_single):
            if remaining is not None and taken >= remaining:
                return
            yield *batch, *next(drawn)
            taken += 1
        if taken == 0:
            return
        remaining = None if remaining is None else remaining - taken
