"""Named random streams. Every random number comes from a generator named by (seed, purpose, client, round, step).

A stream depends on its name alone. Neither the engine, the number of workers nor the order of clients can change a
result.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import numpy as np
import torch

Name = int | str


def derive(*name: Name) -> int:
    """Return a 63-bit seed from the parts of a name. Parts are separated, so ("ab", "c") differs from ("a", "bc")."""
    parts = b"".join(f"{type(part).__name__}:{part}\0".encode() for part in name)
    return int.from_bytes(hashlib.blake2b(parts, digest_size=8).digest(), "little") >> 1


def generator(*name: Name) -> torch.Generator:
    """Return a torch generator for a named stream."""
    return torch.Generator().manual_seed(derive(*name))


def numpy_generator(*name: Name) -> np.random.Generator:
    """Return a numpy generator for a named stream."""
    return np.random.Generator(np.random.PCG64(derive(*name)))


@contextlib.contextmanager
def seeded(*name: Name) -> Iterator[None]:
    """Seed torch's global generators from a named stream inside the context, and restore them afterwards.

    Use it for code that does not accept a generator: initial weights of modules, and dropout.
    """
    before = torch.default_generator.get_state()
    seed = derive(*name)
    torch.default_generator.manual_seed(seed)
    # a process that has not used a GPU so far must not start to use all of them here
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    if gpus:
        torch.cuda.manual_seed_all(seed)
    mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    if mps is not None:
        torch.mps.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
        if gpus:
            torch.cuda.set_rng_state_all(gpus)
        if mps is not None:
            torch.mps.set_rng_state(mps)
