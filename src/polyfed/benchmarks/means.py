"""Means at the server: 20 clients with ResNet-18, compared with a plain running sum in double precision.

Both add differences from the server's model. HeteroFL has sub-models of five widths, which are added at their
positions. The running sums add the same tensors, or their differences from others, and do nothing else. Means and
sums take turns.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from polyfed.core.rounds import one_torch_thread
from polyfed.machine import keep_freed_memory
from polyfed.models import build
from polyfed.models.slicing import Cut, OwnerMean, cut, extract, skeleton

MODEL, SHAPE, CLASSES, CLIENTS, TURNS = "resnet18", (3, 32, 32), 10, 20, 7
WIDTHS = (1.0, 0.5, 0.25, 0.125, 0.0625)
Weights = dict[str, Tensor]
Reply = tuple[Weights, Cut]


def measure() -> dict[str, Any]:
    """Return the seconds of means and of running sums, and their ratios."""
    keep_freed_memory()  # as runs do
    model = build(MODEL, shape=SHAPE, classes=CLASSES)
    old = model.state_dict()
    specs = [MODEL if width == 1 else f"{MODEL}@{width:g}" for width in WIDTHS]
    cuts = {spec: cut(model, skeleton(spec, shape=SHAPE, classes=CLASSES)) for spec in specs}
    whole: list[Reply] = [(extract(old, cuts[MODEL]), cuts[MODEL]) for _ in range(CLIENTS)]
    parts: list[Reply] = [
        (extract(old, cuts[spec]), cuts[spec]) for spec in specs for _ in range(CLIENTS // len(specs))
    ]
    works: dict[str, Callable[[], object]] = {
        "fedavg_mean": lambda: _mean(old, whole),
        "fedavg_sum": lambda: _running_sums(whole),
        "fedavg_difference_sum": lambda: _running_sums(whole, differences=True),
        "heterofl_mean": lambda: _mean(old, parts),
        "heterofl_sum": lambda: _running_sums(parts),
        "heterofl_difference_sum": lambda: _running_sums(parts, differences=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in works}
    with one_torch_thread():
        for _ in range(TURNS + 1):
            for name, work in works.items():
                began = time.perf_counter()
                work()
                seconds[name].append(time.perf_counter() - began)
    figures: dict[str, float] = {}
    for name, values in seconds.items():
        figures[f"{name}_seconds"] = round(statistics.median(values[1:]), 4)
    for method, plain in itertools.product(("fedavg", "heterofl"), ("sum", "difference_sum")):
        turns = zip(seconds[f"{method}_mean"][1:], seconds[f"{method}_{plain}"][1:], strict=True)
        figures[f"{method}_over_{plain}"] = round(statistics.median(mean / other for mean, other in turns), 3)
    return {"figures": figures, "settings": {"model": MODEL, "clients": CLIENTS, "widths": WIDTHS, "turns": TURNS}}


def _mean(old: Weights, replies: list[Reply]) -> dict[str, Tensor]:
    mean = OwnerMean(old)
    for weights, positions in replies:
        mean.add(weights, positions, 10.0, minus=old)
    return mean.mean_difference()


def _running_sums(replies: list[Reply], *, differences: bool = False) -> None:
    """Add tensors of the same shape, or their differences, in double precision."""
    totals: dict[tuple[str, int], Tensor] = {}
    for weights, _ in replies:
        for name, tensor in weights.items():
            key = name, tensor.numel()
            if not tensor.is_floating_point():
                continue
            term = tensor.double() - tensor if differences else tensor.double()
            if key in totals:
                totals[key].add_(term, alpha=10.0)
            else:
                totals[key] = term * 10.0
