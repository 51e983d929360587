"""Random numbers of training steps: drawn on the CPU, so that they are the same on every device, and copied ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

Drawn = tuple[Tensor, ...]
Draw = Callable[[int], Drawn]  # returns the random tensors of one step, from the size of its batch
BLOCK = 64 << 20  # bytes that are drawn and copied at a time


def drawn_ahead(draw: Draw, sizes: Iterable[int], device: torch.device) -> Iterator[Drawn]:
    """Yield the random tensors of one step after the other, on a device.

    On the CPU every step is drawn when it is needed. For other devices many steps are drawn at once, in the same
    order, and copied together: a copy in every step would slow training down.
    """
    if device.type == "cpu":
        yield from map(draw, sizes)
        return
    block: list[Drawn] = []
    for size in sizes:
        block.append(draw(size))
        if sum(tensor.nbytes for drawn in block for tensor in drawn) >= BLOCK:
            yield from _copied(block, device)
            block = []
    yield from _copied(block, device)


def _copied(block: Sequence[Drawn], device: torch.device) -> Iterator[Drawn]:
    copies = iter(copied([tensor for drawn in block for tensor in drawn], device))
    for drawn in block:
        yield tuple(next(copies) for _ in drawn)


def copied(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return tensors of the CPU on a device, copied with one transfer per type."""
    if device.type == "cpu":
        return list(tensors)
    parts: dict[torch.dtype, Iterator[Tensor]] = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        same = [tensor.reshape(-1) for tensor in tensors if tensor.dtype == dtype]
        joined = torch.cat(same).to(device, non_blocking=True)
        parts[dtype] = iter(torch.split(joined, [len(flat) for flat in same]))
    return [next(parts[tensor.dtype]).reshape(tensor.shape) for tensor in tensors]


def batch_sizes(samples: int, batch: int, *, drop_single: bool) -> list[int]:
    """Return the sizes of the batches of one pass over samples."""
    sizes = [min(batch, samples - start) for start in range(0, samples, batch)]
    return sizes[:-1] if drop_single and sizes and sizes[-1] == 1 else sizes
