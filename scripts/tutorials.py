"""Run the notebooks in `docs/tutorials` and save them with their outputs: python scripts/tutorials.py [NOTEBOOK ...]"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"


def execute(path: Path, folder: Path) -> Any:
    """Return a notebook after running all its cells in an empty folder. An exception in a cell is raised."""
    import nbformat
    from nbclient import NotebookClient

    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    # commands such as `!polyfed export` are those of this environment; results must not depend on the width of a terminal
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "COLUMNS": "160",
        "POLYFED_CACHE": str(folder / ".cache"),
    }
    runs = folder / "work"
    runs.mkdir()
    client = NotebookClient(notebook, timeout=600, coalesce_streams=True, resources={"metadata": {"path": str(runs)}})
    client.execute(env=environment)
    for cell in notebook.cells:  # messages with paths must not name a folder of this machine
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                output.text = output.text.replace(f"{runs}/", "")
    return notebook


def save(notebook: Any, path: Path) -> None:
    """Write a notebook with its outputs, without what differs in every run: times and ids of widgets."""
    import nbformat

    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not is_progress(output)]
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]


def is_progress(output: Any) -> bool:
    """Return whether an output is a progress bar, which is of no use after the run."""
    return "<progress" in "".join(output.get("data", {}).get("text/html", ""))


if __name__ == "__main__":
    chosen = [Path(name) for name in sys.argv[1:]] or sorted(TUTORIALS.glob("*.ipynb"))
    for path in chosen:
        with tempfile.TemporaryDirectory() as folder:
            save(execute(path, Path(folder)), path)
        print(path.name)
