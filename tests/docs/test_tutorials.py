"""The notebooks of the documentation run from the first to the last cell, and their saved outputs are complete."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.provisioning import local_provisioner
from scripts.tutorials import TUTORIALS, execute, is_progress
from tests import warm_processes

NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))


class WarmKernel(warm_processes.Process):
    """A Jupyter kernel in a process that has imported torch and polyfed already."""

    stdin = None

    def __init__(
        self, command: list[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None, **others: Any
    ) -> None:
        environment = dict(os.environ if env is None else env)
        environment.pop("JPY_PARENT_PID", None)  # the kernel would end, because its parent is another process
        module = command[command.index("-m") :]
        super().__init__(*module, cwd=cwd, env=environment, new_session=True)


def outputs(notebook: Any) -> list[set[str]]:
    """Return what kinds of output each cell has: types of displayed data, and names of streams."""
    kinds = []
    for cell in notebook.cells:
        found: set[str] = set()
        for output in cell.get("outputs", ()):
            if not is_progress(output):
                found |= {*output.get("data", {}), *([output.name] if output.output_type == "stream" else [])}
        kinds.append(found)
    return kinds


def test_there_are_five() -> None:
    names = ["1_quickstart", "2_own_data", "3_own_models", "4_own_method", "5_trained_models"]
    assert [path.stem for path in NOTEBOOKS] == names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path != NOTEBOOKS[0]:  # the first one has a kernel as Jupyter starts it
        monkeypatch.setattr(local_provisioner, "launch_kernel", WarmKernel)
    saved = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    executed = execute(path, tmp_path)  # an exception in a cell is raised here
    assert outputs(executed) == outputs(saved)  # a warning would be a stream that is not saved
    assert not any("stderr" in kinds for kinds in outputs(saved))
    texts = [
        output.data["text/plain"] for cell in executed.cells for output in cell.get("outputs", ()) if "data" in output
    ]
    assert "False" not in texts  # statements of the text, such as equal hashes
