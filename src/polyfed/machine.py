"""Cores and memory of this process, with the standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def fast_imports(*, permanent: bool = False) -> Iterator[None]:
    """Do not search for reference cycles during imports, which create many objects and hardly any garbage.

    With `permanent`, for a process of polyfed's own, all objects that exist at the end are excluded from later
    searches: torch's 150,000 objects take 80 ms each time, and a run whose clients are all new would search every
    fifth round. What is excluded and later becomes part of a cycle is never freed. Nothing is excluded if torch is
    already imported: then the process is not a new one.
    """
    was_enabled, freeze = gc.isenabled(), permanent and "torch" not in sys.modules
    if freeze:
        gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if freeze:
            gc.freeze()
        if was_enabled:
            gc.enable()


def peak_rss() -> int:
    """Return the peak resident memory of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


# of glibc's `mallopt`: its parameters, and the values that are set
TRIM_THRESHOLD, TRIM_BYTES = -1, 128 << 20
MMAP_THRESHOLD, MMAP_BYTES = -3, 32 << 20


def keep_freed_memory() -> None:
    """Keep up to 128 MB of freed memory in this process.

    Messages and gradients free and take the same megabytes again and again. By default, glibc returns them to the
    system each time, and to get them back takes longer than to fill them. Other systems are left as they are.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_THRESHOLD, MMAP_BYTES)
        mallopt(TRIM_THRESHOLD, TRIM_BYTES)


LARGE_PAGES = "glibc.malloc.hugetlb"  # the setting in GLIBC_TUNABLES


def with_large_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a new process whose memory has pages of 2 MB where the system has them.

    A training step reads and writes every weight, and to find a million weights in pages of 4 kB takes part of its
    time: 3 to 8 % with CNNs. glibc reads the setting when a process starts. A setting of the user's own stays.
    """
    given = environment.get("GLIBC_TUNABLES", "")
    if sys.platform != "linux" or LARGE_PAGES in given:
        return dict(environment)
    return {**environment, "GLIBC_TUNABLES": ":".join(filter(None, [given, f"{LARGE_PAGES}=1"]))}


LARGE = 4 << 20  # bytes of memory that is worth large pages


def request_large_pages(address: int, size: int) -> None:
    """Ask for pages of 2 MB for new memory before it is filled.

    To get megabytes in pages of 4 kB takes longer than to fill them. Nothing happens if the memory is small or the
    system has no large pages.
    """
    if size >= LARGE and _madvise is not None:
        page = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        _madvise(page, address + size - page, mmap.MADV_HUGEPAGE)


_madvise: Callable[[int, int, int], int] | None = None
if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux only
    _madvise = ctypes.CDLL(None).madvise
    _madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
