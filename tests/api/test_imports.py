"""What a command imports is not searched for garbage. In a user's process, garbage is collected as before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import gc
{first}
from polyfed.machine import fast_imports

class Node: ...
node = Node()
node.itself, freed = node, []
node.closet = type("Closet", (), {{"__del__": lambda closet: freed.append("garbage")}})()
gc.disable()  # what is found is found by the context manager
del node
gc.enable()
before = gc.get_freeze_count()
with fast_imports(permanent={permanent}):
    paused, found = not gc.isenabled(), list(freed)
    from polyfed.federation import simulation
print(gc.get_freeze_count() - before > 50_000, gc.get_freeze_count() == before, found, paused, gc.isenabled())
"""


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("first", "permanent", "printed"),
    [
        ("", True, "True False ['garbage'] True True"),
        ("", False, "False True [] True True"),
        ("import torch", True, "False True [] True True"),
    ],
)
def test_permanent_imports_are_excluded_after_a_search(first: str, permanent: bool, printed: str) -> None:
    assert _output(sys.executable, "-c", SCRIPT.format(first=first, permanent=permanent)) == printed


NOTEBOOK = """
import gc, weakref
import polyfed

class Model: ...
model = Model()
model.itself, known = model, weakref.ref(model)
polyfed.run("quickstart", rounds=1, out={out!r}, engine={{"name": "serial"}}, progress=False)
del model
gc.collect()
print(known() is None)
"""


def test_cycles_of_a_notebook_are_freed_after_a_run(tmp_path: Path) -> None:
    assert _output(sys.executable, "-c", NOTEBOOK.format(out=str(tmp_path / "run"))).endswith("True")
