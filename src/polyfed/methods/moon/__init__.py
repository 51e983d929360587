"""MOON: `method` has the algorithm, `projection_head` handles projection heads of sub-models."""

from polyfed.methods.moon.method import Moon

__all__ = ["Moon"]
