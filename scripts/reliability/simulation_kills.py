"""Kill the processes of a simulation at random moments: main process, worker, fork server."""

from typing import Any


def kill_simulation(*a: Any) -> Any: ...
