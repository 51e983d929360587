"""Join parts of a large message into one bytes object.

`b"".join` fills memory that the system has to provide in pages of 4 kB, which takes longer than copying the parts.
Here, pages of 2 MB are requested where the system has them. Small messages are joined as usual.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

import numpy as np

from polyfed.machine import LARGE, request_large_pages

LINUX = sys.platform == "linux"


def join(parts: Sequence[bytes | memoryview]) -> bytes:
    """Return the parts as one bytes object."""
    size = sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in parts)
    if size < LARGE or not LINUX:
        return b"".join(parts)
    # Python's C API allows writing into a new bytes object before it is returned to a caller
    joined: bytes = _new_bytes(None, size)
    start = int(_address(joined))
    request_large_pages(start, size)
    position = start
    for part in parts:
        source = np.frombuffer(part, np.uint8)
        ctypes.memmove(position, source.ctypes.data, source.nbytes)
        position += source.nbytes
    return joined


if LINUX:
    # a library handle of its own: argument types set on `ctypes.pythonapi` would change it for the whole process
    _python = ctypes.PyDLL(None)
    _new_bytes, _address = _python.PyBytes_FromStringAndSize, _python.PyBytes_AsString
    _new_bytes.argtypes, _new_bytes.restype = [ctypes.c_char_p, ctypes.c_ssize_t], ctypes.py_object
    _address.argtypes, _address.restype = [ctypes.py_object], ctypes.c_void_p
