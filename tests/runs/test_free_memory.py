"""Tests that a server's state that does not fit into the memory of the machine gets a message."""

from __future__ import annotations

import resource

import pytest
import torch

from polyfed.federation.free_memory import TooLittleMemoryError, within_free_memory

GIB = 1 << 30
LIMIT = resource.RLIMIT_AS


def allocate(gibibytes: int) -> list[torch.Tensor]:
    """Allocate addresses only: nothing is written."""
    return [torch.empty(GIB, dtype=torch.uint8) for _ in range(gibibytes)]


def test_a_block_that_allocates_more_than_is_free_gets_a_message_and_the_limit_is_restored() -> None:
    before = resource.getrlimit(LIMIT)
    message = r"^the server's state of x needs more than \d+ GiB"
    with pytest.raises(TooLittleMemoryError, match=message), within_free_memory("the server's state of x"):
        allocate(4096)
    assert resource.getrlimit(LIMIT) == before


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(RuntimeError, match="size of tensor"), within_free_memory("x"):
        torch.ones(2) + torch.ones(3)
