"""Weights & Biases, offline: files in the run folder, which `wandb sync` sends when the user says so."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from polyfed.runs.atomic_files import write_atomically


class WandB:
    """Offline unless `WANDB_MODE` says otherwise; a resumed run keeps its id, so that a sync puts it together."""

    needs: ClassVar[tuple[str, ...]] = ("wandb",)

    def start(self, name: str, folder: Path, config: Mapping[str, Any], done: int) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it would report its own crashes to its makers
        import wandb

        remembered = folder / "tracking" / "wandb-run"
        known = remembered.read_text() if done and remembered.exists() else None
        place = folder / "tracking"
        place.mkdir(exist_ok=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "polyfed"),
            name=name,
            dir=str(place),
            config=dict(config),
            id=known,
            resume="allow" if known else None,
            mode=_mode(),
            settings=wandb.Settings(console="off", silent=True, disable_git=True, x_disable_stats=True),
        )
        write_atomically(remembered, self._run.id.encode(), durable=False)

    def log(self, number: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=number)

    def finish(self, state: str) -> None:
        self._run.finish(exit_code=0 if state == "finished" else 1)


def _mode() -> Any:
    return os.environ.get("WANDB_MODE", "offline")
