"""Named random streams: every draw comes from (seed, purpose, client, round, step), never from global state.

A stream's first number depends on its name alone, so neither the engine nor the number of workers nor the
order in which clients are served can change a result.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import numpy as np
import torch

Name = int | str


def derive(*name: Name) -> int:
    """A 63-bit number that depends on every part of `name` and on where one part ends and the next begins."""
    parts = b"".join(f"{type(part).__name__}:{part}\0".encode() for part in name)
    return int.from_bytes(hashlib.blake2b(parts, digest_size=8).digest(), "little") >> 1


def generator(*name: Name) -> torch.Generator:
    """A torch generator for the stream called `name`."""
    return torch.Generator().manual_seed(derive(*name))


def numpy_generator(*name: Name) -> np.random.Generator:
    """A numpy generator for the stream called `name`."""
    return np.random.Generator(np.random.PCG64(derive(*name)))


@contextlib.contextmanager
def seeded(*name: Name) -> Iterator[None]:
    """Torch's own generators follow the stream called `name` inside, and are put back as they were after.

    For what cannot be handed a generator: the initial weights of a module, and dropout.
    """
    before = torch.default_generator.get_state()
    seed = derive(*name)
    torch.default_generator.manual_seed(seed)
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    if gpus:
        torch.cuda.manual_seed_all(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
        if gpus:
            torch.cuda.set_rng_state_all(gpus)
