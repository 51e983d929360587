"""Gaussian noise from a cryptographic hash of a name.

The same name gives the same noise, so a call that is repeated after a crash sends the same bytes. If the name
contains a secret, only its owner can reproduce the noise.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor


def gaussian(count: int, *name: str | int) -> Tensor:
    """Return standard normal numbers in double precision, from SHAKE-256 of the name."""
    raw = np.frombuffer(hashlib.shake_256(_text(name)).digest(8 * count), dtype="<u8")
    # The midpoint of one of 2^52 equal intervals of (0, 1): never 0 or 1, and exact in double. Tails end at 8.2.
    uniform = ((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    normal: Tensor = torch.special.ndtri(torch.from_numpy(uniform))
    return normal


def release_id(*name: str | int) -> str:
    """Return an identifier of noise that reveals nothing about it."""
    return hashlib.blake2b(_text(name), digest_size=16).hexdigest()


def _text(name: tuple[str | int, ...]) -> bytes:
    return b"".join(f"{type(part).__name__}:{part}\0".encode() for part in name)


def digest(values: Tensor) -> str:
    """Return a digest of values. As part of a name, it gives different values different noise."""
    return hashlib.sha256(np.ascontiguousarray(values.numpy()).tobytes()).hexdigest()
