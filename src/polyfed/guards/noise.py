"""Gaussian noise that nobody can foretell without the name it is drawn under.

The same name gives the same noise, so that a call which is repeated after a crash answers with the same bytes.
A name that holds a secret makes the noise one that only the holder of the secret can take off again.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor


def gaussian(count: int, *name: str | int) -> Tensor:
    """Standard normal numbers in double precision, from SHAKE-256 over the name."""
    raw = np.frombuffer(hashlib.shake_256(_text(name)).digest(8 * count), dtype="<u8")
    # The middle of one of 2^52 equal parts of (0, 1): never 0 or 1, and every one a double. Tails end at 8.2.
    uniform = ((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    normal: Tensor = torch.special.ndtri(torch.from_numpy(uniform))
    return normal


def short_name(*name: str | int) -> str:
    """A name by which noise can be known again, and nothing told about it."""
    return hashlib.blake2b(_text(name), digest_size=16).hexdigest()


def _text(name: tuple[str | int, ...]) -> bytes:
    return b"".join(f"{type(part).__name__}:{part}\0".encode() for part in name)


def digest(values: Tensor) -> str:
    """A name for values: noise drawn under it is new for every value, and the same for the same one."""
    return hashlib.sha256(np.ascontiguousarray(values.numpy()).tobytes()).hexdigest()
