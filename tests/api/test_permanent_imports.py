"""What a run imports is not searched for garbage: torch's objects stay until the process ends."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc
{first}
from polyfed.machine import permanent_imports

class Node: ...
node = Node()
node.itself, freed = node, []
node.closet = type("Closet", (), {{"__del__": lambda closet: freed.append("garbage")}})()
gc.disable()  # what is found is found by the context manager
del node
gc.enable()
with permanent_imports():
    from polyfed.federation import simulation
print(gc.get_freeze_count(), freed, gc.isenabled())
"""


def _frozen_after(first: str) -> tuple[int, str]:
    """Run the script in a new process; return the number of excluded objects and the rest of what it printed."""
    command = [sys.executable, "-c", SCRIPT.format(first=first)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    count, rest = output.split(maxsplit=1)
    return int(count), rest.strip()


def test_imports_are_excluded_after_a_search_for_garbage() -> None:
    count, printed = _frozen_after("")
    assert count > 50_000
    assert printed == "['garbage'] True"


def test_nothing_is_excluded_if_torch_was_imported_before() -> None:
    assert _frozen_after("import torch")[0] == 0
