"""Moon: `method` is the algorithm; the other modules are the parts that only this method uses."""

from polyfed.methods.moon.method import Moon

__all__ = ["Moon"]
