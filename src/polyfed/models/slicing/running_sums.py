"""Sums over clients in double precision. Large tensors of several clients are added at the same time.

Adding a large tensor is limited by memory: its sum is read and written for every client. If the tensors of several
clients wait and are then added block by block, a block of the sum stays in the processor's cache for all of them.
Every number of a sum still receives its terms in the order in which they were added, so the bits are the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyfed import machine
from polyfed.errors import RunError

BLOCK = 1 << 18  # numbers that are added at a time
MAX_WAITING = 4  # clients whose tensors are added at the same time; the server does this work after the last reply
MAX_WAITING_BYTES = 256 << 20  # of tensors that wait; larger ones are added at once

Subscript = tuple[Tensor | slice, ...]


class Term(NamedTuple):
    """`(value - minus) * times * weight`, to be added to a sum at the positions `at`.

    `value` has the shape of these positions, `minus` the shape of the sum.
    """

    value: Tensor
    at: Subscript
    weight: float = 1.0
    minus: Tensor | None = None
    times: float = 1.0


class RunningSums:
    """Sums of tensors by name. Integer tensors (BatchNorm's counter) take the maximum."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._new: set[str] = set()  # sums whose memory has no values yet
        self._waiting: list[Mapping[str, Term]] = []
        self._bytes = 0  # of the values that wait
        self._taken = False

    def add(self, terms: Mapping[str, Term], like: Mapping[str, Tensor]) -> None:
        """Add one client's terms. Sums have the shapes and devices of `like`. The tensors must not change later."""
        self._check_not_taken()
        for name in terms:
            if name not in self._sums:
                self._sums[name] = _new_sum(like[name])
                self._new.add(name)
        self._waiting.append(terms)
        self._bytes += sum(term.value.nbytes for term in terms.values())
        on_cpu = all(term.value.is_cpu for term in terms.values())  # waiting does not help elsewhere
        if not on_cpu or len(self._waiting) >= MAX_WAITING or self._bytes > MAX_WAITING_BYTES:
            self._add_waiting()

    def take(self) -> dict[str, Tensor]:
        """Return the sums, floats in double precision. They belong to the caller; nothing can be added later."""
        self._check_not_taken()
        self._add_waiting()
        self._taken = True
        return self._sums

    def _check_not_taken(self) -> None:
        if self._taken:
            raise RunError(
                "a mean over clients has been computed; start another one to add clients or to compute it again"
            )

    @property
    def waiting(self) -> int:
        """Number of clients whose terms have not been added yet."""
        return len(self._waiting)

    def _add_waiting(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        for name in dict.fromkeys(itertools.chain.from_iterable(waiting)):
            _add_all(self._sums[name], [terms[name] for terms in waiting if name in terms], new=name in self._new)
            self._new.discard(name)


def _new_sum(like: Tensor) -> Tensor:
    """Return memory for a sum of tensors with this shape."""
    total = torch.empty_like(like, dtype=torch.float64 if like.is_floating_point() else None, requires_grad=False)
    if total.is_cpu:
        machine.request_large_pages(total.data_ptr(), total.nbytes)
    return total


def _fill_empty(total: Tensor) -> None:
    """Fill a sum with its initial value: negative zero for floats, the smallest value of the type for integer maxima.

    Adding to negative zero preserves the sign of a first summand that is itself a zero.
    """
    if total.is_floating_point():
        total.fill_(-0.0)
    else:
        total.fill_(False if total.dtype == torch.bool else torch.iinfo(total.dtype).min)


def _add_all(total: Tensor, terms: Sequence[Term], *, new: bool) -> None:
    """Add terms to a sum, in their order. A `new` sum has no values yet."""
    large = total.is_cpu and total.is_floating_point() and total.numel() > BLOCK
    by_blocks = large and all(isinstance(part, slice) for term in terms for part in term.at)
    if by_blocks and all(_is_whole(total, term) for term in terms):
        _add_whole(total, terms, new=new)
        return
    if new:
        _fill_empty(total)
    if by_blocks:
        _add_by_rows(total, terms)
        return
    for term in terms:
        # Indexing with vectors returns a copy, which is written back below; indexing with slices returns a view.
        part = total[term.at]
        if total.is_floating_point():
            scaled = torch.empty_like(term.value, dtype=torch.float64)
            _add_scaled(part, term, term.value, None if term.minus is None else term.minus[term.at], scaled)
        else:
            part.copy_(torch.maximum(part, term.value))
        if any(isinstance(positions, Tensor) for positions in term.at):
            total[term.at] = part


def _add_scaled(part: Tensor, term: Term, value: Tensor, minus: Tensor | None, scaled: Tensor) -> None:
    """Add a term to a part of a sum. `scaled` is memory for its product."""
    scaled.copy_(value)
    if minus is not None:
        scaled.sub_(minus)
    for factor in (term.times, term.weight):
        if factor != 1.0:
            scaled.mul_(factor)
    part.add_(scaled)


def _add_whole(total: Tensor, terms: Sequence[Term], *, new: bool) -> None:
    """Add terms to a block of a sum at a time, so that the block and all intermediate values stay in the cache.

    Every term is added to all positions. The views of all blocks are created at once, which is faster.
    """
    values = [torch.split(term.value.view(-1), BLOCK) for term in terms]
    minuses = [None if term.minus is None else torch.split(term.minus.view(-1), BLOCK) for term in terms]
    memory = torch.empty(2, BLOCK, dtype=torch.float64)
    for number, part in enumerate(torch.split(total.view(-1), BLOCK)):
        if new:
            _fill_empty(part)
        scaled, less = memory[:, : len(part)]
        converted: tuple[object, ...] = ()  # what `less` holds
        for term, value, minus in zip(terms, values, minuses, strict=True):
            if minus is None:
                _add_scaled(part, term, value[number], None, scaled)
                continue
            key = (minus[number].data_ptr(), minus[number].dtype)
            if converted != key:  # usually the same for all clients
                less.copy_(minus[number])
                converted = key
            _add_scaled(part, term, value[number], less, scaled)


def _add_by_rows(total: Tensor, terms: Sequence[Term]) -> None:
    """Add terms to some rows of a sum at a time, as `_add_whole` does with blocks."""
    rows = max(1, BLOCK * len(total) // total.numel())
    size = rows * total.numel() // len(total)
    memory, minus_memory = torch.empty(2, size, dtype=torch.float64)
    columns = [(slice(None), *term.at[1:]) for term in terms]
    sums = [total[at] for at in columns]
    minuses = [None if term.minus is None else term.minus[at] for term, at in zip(terms, columns, strict=True)]
    ranges = [_range(term.at[0], len(total)) for term in terms]
    for first in range(0, len(total), rows):
        converted: tuple[object, ...] = ()  # what `minus_memory` holds
        for number, term in enumerate(terms):
            start, stop = max(first, ranges[number][0]), min(first + rows, ranges[number][1])
            if start >= stop:
                continue
            part, minus = sums[number][start:stop], minuses[number]
            value = term.value[start - ranges[number][0] : stop - ranges[number][0]]
            if minus is not None:  # usually the same for all clients
                less = minus_memory[: part.numel()].view(part.shape)
                subtracted = minus[start:stop]
                key = (subtracted.data_ptr(), subtracted.shape, subtracted.stride(), subtracted.dtype)
                if converted != key:
                    less.copy_(subtracted)
                    converted = key
                minus = less
            _add_scaled(part, term, value, minus, memory[: part.numel()].view(part.shape))


def _is_whole(total: Tensor, term: Term) -> bool:
    """Whether a term is added to all positions of a sum, and all its tensors can be read as one vector."""
    tensors = [total, term.value] if term.minus is None else [total, term.value, term.minus]
    return term.value.shape == total.shape and all(tensor.is_contiguous() for tensor in tensors)


def _range(positions: Tensor | slice, size: int) -> tuple[int, int]:
    """Return the first position of a slice, and the one after the last."""
    assert isinstance(positions, slice)
    start, stop, _ = positions.indices(size)
    return start, stop
