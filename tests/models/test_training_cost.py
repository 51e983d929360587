"""The cost of training a model: FLOPs as torch counts them, memory by hand."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from polyfed.models import ModelSpec
from polyfed.models.meta import meta_device
from polyfed.models.registry import build
from polyfed.models.training_cost import training_cost

CASES = [
    (ModelSpec("tiny-cnn"), (1, 8, 8)),
    (ModelSpec("tiny-resnet14"), (3, 16, 16)),
    (ModelSpec("tiny-vit-2"), (3, 16, 16)),
    (ModelSpec("tiny-cnn", upscale_input=16), (3, 8, 8)),
    (ModelSpec("tiny-series-transformer"), (9, 32)),
]


@pytest.mark.parametrize(("spec", "shape"), CASES, ids=lambda case: getattr(case, "name", ""))
def test_flops_are_those_of_torch(spec: ModelSpec, shape: tuple[int, ...]) -> None:
    # torch's counter overestimates the backward pass of depthwise convolutions, so none of these models has any
    # on the meta device, because its counter leaves out the fused attention of the CPU
    with meta_device():
        model = build(spec, shape=shape, classes=10).train()
    with FlopCounterMode(display=False) as forward:
        model(torch.zeros(2, *shape, device="meta"))
    with FlopCounterMode(display=False) as both:
        model(torch.zeros(2, *shape, device="meta")).sum().backward()
    cost = training_cost(spec, shape, 10)
    assert cost.forward_flops == forward.get_total_flops() / 2
    assert cost.training_flops == pytest.approx(both.get_total_flops() / 2, rel=0.02)


def test_a_recurrent_layer_is_counted() -> None:
    spec = ModelSpec("tiny-series-gru")
    model = build(spec, shape=(9, 32), classes=10).train()
    with FlopCounterMode(display=False) as forward:
        model(torch.zeros(2, 9, 32))
    assert training_cost(spec, (9, 32), 10).forward_flops == forward.get_total_flops() / 2


def test_memory_of_a_step() -> None:
    cost = training_cost(ModelSpec("tiny-mlp"), (1, 8, 8), 10)
    # two hidden layers; the saved activations are the inputs of the layers and what their activation functions keep
    assert cost.state_bytes >= 4 * cost.parameters
    assert 0 < cost.activation_bytes < 16 * 1024
    plain, adam = cost.memory(10, "sgd", 0.0), cost.memory(10, "adam", 0.0)
    assert plain == cost.state_bytes + 4 * cost.parameters + 10 * cost.activation_bytes
    assert adam - plain == 8 * cost.parameters and cost.memory(10, "sgd", 0.9) - plain == 4 * cost.parameters
