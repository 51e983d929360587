"""Stop with a message before the memory of the machine is used up. The system would kill the process without one."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from polyfed.errors import InputError

MEMORY = Path("/proc/meminfo")
PROCESS = Path("/proc/self/status")
GIB = 1 << 30
SHARE = 0.8  # of the free memory; other programs need the rest


class TooLittleMemoryError(InputError):
    """Something needs more memory than the machine has free."""


@contextlib.contextmanager
def within_free_memory(subject: str) -> Iterator[None]:
    """Raise `TooLittleMemoryError` if the block allocates more than the free memory of the machine.

    The limit holds for addresses, so it is no use for blocks that start CUDA, which reserves far more than it needs.
    Only Linux says how much memory is free; elsewhere there is no limit.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    free = int(SHARE * _bytes_of(MEMORY, "MemAvailable"))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _bytes_of(PROCESS, "VmSize") + free
    known = [one for one in (soft, hard) if one != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([limit, *known]), hard))
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):
            raise
        raise TooLittleMemoryError(
            f"{subject} needs more than {free / GIB:.0f} GiB, four fifths of the memory that is free here; "
            "use models with fewer features, or a machine with more memory"
        ) from None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _bytes_of(file: Path, name: str) -> int:
    """Return a value of a file of the system in bytes."""
    found = re.search(rf"^{name}:\s*(\d+) kB", file.read_text(), re.MULTILINE)
    assert found is not None, f"{file} has no {name}"
    return int(found[1]) << 10
