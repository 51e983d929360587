"""Run folders written by hand, with the files of a real run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml


class MakeRun(Protocol):
    """Function that creates a run folder and returns its path."""

    def __call__(
        self,
        name: str = "run",
        *,
        method: str = "fedproto",
        seed: int = 0,
        personal: list[float] | None = None,
        finished: bool = True,
        more: list[dict[str, Any]] | None = None,
        config: dict[str, Any] | None = None,
        sent: int = 1000,
        client: str = "1",
    ) -> Path: ...


def round_event(number: int, personal: float, loss: float | None, sent: int) -> dict[str, Any]:
    """Return the event of a round with two clients that download three times what they upload."""
    return {
        "event": "round",
        "round": number,
        "accuracy": {
            "personal": {"value": personal, "by_client": [personal / 2, personal]},
            "global": {"value": personal / 2, "by_client": [personal / 2, personal / 2]},
        },
        "loss": loss,
        "up": {"prototypes": sent},
        "down": {"prototypes": 3 * sent},
        "overhead": {"up": 7, "down": 9},
        "seconds": {"total": 2.0, "train": 1.0, "evaluate": 0.5, "server": 0.25, "clients": 1.5},
        "failures": [],
    }


def left_event(number: int, client: str, size: int) -> dict[str, Any]:
    shapes = {"prototypes": f"{size // 4} rows of 64"}
    return {
        "event": "left",
        "round": number,
        "client": client,
        "step": "train",
        "fields": {"prototypes": size},
        "shapes": shapes,
    }


def summary(method: str, seed: int, personal: list[float], sent: int) -> dict[str, Any]:
    def measured(values: list[float]) -> dict[str, Any]:
        best = max(values)
        by_client = [values[-1] / 2, values[-1]]
        return {"final": values[-1], "best": best, "best_round": 1, "by_client": by_client, "by_round": values}

    n = len(personal)
    return {
        "name": f"{method}-{seed}",
        "method": method,
        "seed": seed,
        "rounds": n,
        "clients": 2,
        "accuracy": {"personal": measured(personal), "global": measured([value / 2 for value in personal])},
        "loss": {"by_round": [1.0] * n},
        "bytes": {"up": n * sent, "down": 3 * n * sent, "up_by_round": [sent] * n, "down_by_round": [3 * sent] * n},
        "seconds": {"total": 2.0 * n, "by_round": [2.0] * n},
        "failures": [],
    }


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    return run_maker(tmp_path)


@pytest.fixture(scope="module")
def make_module_run(tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """As `make_run`, for runs that all tests of a module share."""
    return run_maker(tmp_path_factory.mktemp("shared"))


def run_maker(parent: Path) -> MakeRun:
    """Return a function that creates run folders below `parent / "runs"`."""

    def make(
        name: str = "run",
        *,
        method: str = "fedproto",
        seed: int = 0,
        personal: list[float] | None = None,
        finished: bool = True,
        more: list[dict[str, Any]] | None = None,
        config: dict[str, Any] | None = None,
        sent: int = 1000,
        client: str = "1",
    ) -> Path:
        values = [0.25, 0.75, 0.5] if personal is None else personal
        folder = parent / "runs" / name.replace("/", "_")
        folder.mkdir(parents=True)
        settings = {
            "name": name,
            "method": {"name": method},
            "data": {"dataset": "digits"},
            "clients": 2,
            "rounds": len(values) if finished else 10,
            "seed": seed,
            **(config or {}),
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(settings))
        events: list[dict[str, Any]] = [{"event": "started", "rounds": 10, "clients": 2}]
        for number, value in enumerate(values, 1):
            events += [left_event(number, "0", sent // 4), left_event(number, client, sent - sent // 4)]
            events.append(round_event(number, value, 2.0 / number if number != 3 else 1.5, sent))
        events += more or []
        (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        clients = [
            {"name": "0", "model": "small", "numbers": 10, "train": {"0": 5, "2": 1}, "test": {"0": 1}},
            {"name": client, "model": "large", "numbers": 99, "train": {"1": 20}, "test": {"1": 2}},
        ]
        (folder / "clients.json").write_text(json.dumps({"class_names": ["zero", "one", "two"], "clients": clients}))
        if finished:
            (folder / "result.json").write_text(json.dumps(summary(method, seed, values, sent)))
        return folder

    return make
