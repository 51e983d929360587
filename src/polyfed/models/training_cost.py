"""Cost of training a model on one sample: FLOPs, saved activations and parameters, without training it.

One small batch runs forward on the CPU, with weights of zero. `torch.utils.flop_counter` counts the same, but imports
torch's compiler, which takes longer than everything else that `polyfed check` does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from polyfed.models.meta import meta_device
from polyfed.models.registry import build
from polyfed.models.spec import ModelSpec, Shape

BATCH = 2  # BatchNorm needs two samples; all costs grow linearly with the batch
FLOAT_BYTES = 4


@dataclass(frozen=True)
class TrainingCost:
    """Cost of one architecture. FLOPs count convolutions, linear layers, attention and other matrix products."""

    forward_flops: float  # per sample
    training_flops: float  # per sample, forward and backward
    activation_bytes: float  # per sample, saved between forward and backward pass
    operations: int  # that a forward pass starts, whatever the batch; a backward pass starts about twice as many
    parameters: int  # trainable numbers
    state_bytes: int  # all parameters and buffers

    def memory(self, batch: int, optimizer: str, momentum: float) -> float:
        """Return the bytes of weights, gradients, optimiser state and activations in a training step."""
        extra = 2 if optimizer == "adam" else int(momentum > 0)
        return self.state_bytes + FLOAT_BYTES * self.parameters * (1 + extra) + batch * self.activation_bytes


@lru_cache(maxsize=64)
def training_cost(spec: ModelSpec, shape: Shape, classes: int) -> TrainingCost:
    """Measure the cost of an architecture for samples of this shape."""
    with meta_device():
        model = build(spec, shape=shape, classes=classes).train()
    # `to_empty` would leave numbers that may be slow to compute with, and imports torch's compiler
    model._apply(lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype))  # type: ignore[no-untyped-call]
    inputs = torch.zeros(BATCH, *shape, dtype=torch.float32 if spec.vocabulary is None else torch.int64)
    state = list(model.state_dict().values())
    weights = {tensor.untyped_storage().data_ptr() for tensor in state}
    flops = _FlopCounter()
    with _counting_activations(weights) as saved, flops, _counting_recurrent_layers(model, flops):
        model(inputs)
    return TrainingCost(
        forward_flops=flops.forward / BATCH,
        training_flops=(flops.forward + flops.backward) / BATCH,
        activation_bytes=sum(saved.values()) / BATCH,
        operations=flops.operations,
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        state_bytes=sum(t.numel() * t.element_size() for t in state),
    )


class _FlopCounter(TorchFunctionMode):
    """Counts the FLOPs of matrix products. A backward pass repeats them for every operand that needs a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.forward = 0.0
        self.backward = 0.0
        self.operations = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # functions that compute something return a tensor with a history; views start nothing
        if isinstance(result, Tensor) and result.grad_fn is not None and not result._is_view():
            self.operations += 1
        count = _FLOPS.get(func)
        if count is not None and isinstance(result, Tensor):
            operands = args[:3] if func is F.scaled_dot_product_attention else args[:2]
            self.add(count(result, *operands), sum(operand.requires_grad for operand in operands))
        return result

    def add(self, flops: float, gradients: int) -> None:
        self.forward += flops
        # the two products of attention have two operands each, of which query, key and value are three
        self.backward += flops * (2 if gradients == 3 else gradients)


def _convolution(result: Tensor, x: Tensor, weight: Tensor) -> float:
    return 2.0 * result.numel() * weight[0].numel()


def _transposed_convolution(result: Tensor, x: Tensor, weight: Tensor) -> float:
    return 2.0 * x.numel() * weight[0].numel()


def _linear(result: Tensor, x: Tensor, weight: Tensor) -> float:
    return 2.0 * result.numel() * weight.shape[-1]


def _product(result: Tensor, a: Tensor, b: Tensor) -> float:
    return 2.0 * result.numel() * a.shape[-1]


def _attention(result: Tensor, query: Tensor, key: Tensor, value: Tensor) -> float:
    scores = query[..., 0].numel() * key.shape[-2]
    return 2.0 * scores * (query.shape[-1] + value.shape[-1])


_FLOPS: dict[Any, Callable[..., float]] = {
    F.conv1d: _convolution,
    F.conv2d: _convolution,
    F.conv3d: _convolution,
    F.conv_transpose1d: _transposed_convolution,
    F.conv_transpose2d: _transposed_convolution,
    F.conv_transpose3d: _transposed_convolution,
    F.linear: _linear,
    F.scaled_dot_product_attention: _attention,
    torch.matmul: _product,
    torch.mm: _product,
    torch.bmm: _product,
    Tensor.matmul: _product,
    Tensor.__matmul__: _product,
    Tensor.mm: _product,
    Tensor.bmm: _product,
}


@contextlib.contextmanager
def _counting_recurrent_layers(model: nn.Module, counter: _FlopCounter) -> Iterator[None]:
    """Count layers such as GRU, which run as one operation, by their weights: each is used once per step."""

    def count(layer: nn.Module, inputs: tuple[Any, ...], outputs: Any) -> None:
        samples_and_steps = outputs[0].shape[0] * outputs[0].shape[1]
        matrices = [p for p in layer.parameters() if p.ndim == 2]
        counter.add(2.0 * samples_and_steps * sum(p.numel() for p in matrices), 2)

    hooks = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, nn.RNNBase)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _counting_activations(weights: set[int]) -> Iterator[dict[int, int]]:
    """Record the size of every storage that is saved for the backward pass, except the weights."""
    sizes: dict[int, int] = {}
    kept = []  # an address must not be used twice while we count

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        yield sizes
