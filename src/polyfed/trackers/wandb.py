"""Weights & Biases tracker: offline files in the run folder, uploaded by `wandb sync`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from polyfed.runs.atomic_files import write_atomically


class WandB:
    """Weights & Biases run, offline unless `WANDB_MODE` is set. A resumed run keeps its id."""

    needs: ClassVar[tuple[str, ...]] = ("wandb",)

    def start(self, name: str, folder: Path, config: Mapping[str, Any], done: int) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # no crash reports
        import wandb

        id_file = folder / "tracking" / "wandb-run"
        run_id = id_file.read_text() if done and id_file.exists() else None
        tracking = folder / "tracking"
        tracking.mkdir(exist_ok=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "polyfed"),
            name=name,
            dir=str(tracking),
            config=dict(config),
            id=run_id,
            resume="allow" if run_id else None,
            mode=_mode(),
            settings=wandb.Settings(console="off", silent=True, disable_git=True, x_disable_stats=True),
        )
        write_atomically(id_file, self._run.id.encode(), durable=False)

    def log(self, number: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=number)

    def finish(self, state: str) -> None:
        self._run.finish(exit_code=0 if state == "finished" else 1)


def _mode() -> Any:
    return os.environ.get("WANDB_MODE", "offline")
