"""TensorBoard tracker: event files in the run folder, so that `tensorboard --logdir runs` finds every run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from polyfed.runs.config_text import flatten


class TensorBoard:
    """TensorBoard writer of scalars, and of the config as text."""

    needs: ClassVar[tuple[str, ...]] = ("tensorboard",)

    def start(self, name: str, folder: Path, config: Mapping[str, Any], done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # a resumed run repeats the rounds after its checkpoint: drop what was written for them
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1 if done else None)
        if not done:
            table = "".join(f"| {key} | {value} |\n" for key, value in flatten(config))
            self._writer.add_text("config", f"| key | value |\n|---|---|\n{table}", 0)

    def log(self, number: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, number)
        self._writer.flush()

    def finish(self, state: str) -> None:
        self._writer.add_text("state", state)
        self._writer.close()
