"""Response times of the dashboard over 1,000 runs: its first view, each update, and one run."""

from __future__ import annotations

import functools
import json
import tempfile
import time
import urllib.request
from pathlib import Path
from threading import Thread
from typing import Any

import yaml

RUNS, ROUNDS, CLIENTS = 1000, 200, 20
KINDS = 7  # different learning curves
UNFINISHED = 10  # every tenth run has no result, so its events are read


def measure() -> dict[str, Any]:
    """Return response times in seconds, as seen by a browser on the same machine."""
    from polyfed.ui.server import open_dashboard

    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), RUNS, ROUNDS, CLIENTS)
        page = open_dashboard(Path(folder))
        thread = Thread(target=page.serve, daemon=True)
        thread.start()
        while not page.server.started:
            time.sleep(0.01)
        first, answer = _request(f"{page.origin}/api/runs")
        everything, more = first, answer["more"]
        while more:  # as the page does
            seconds, further = _request(f"{page.origin}/api/runs?since={answer['revision']}")
            everything, more = everything + seconds, further["more"]
        time.sleep(1)
        each, _ = _request(f"{page.origin}/api/runs?since={answer['revision']}")
        opened, _ = _request(f"{page.origin}/api/rounds?id={answer['runs'][0]['id']}")
        page.server.should_exit = True
        thread.join()
    figures = {
        "first_view_seconds": round(first, 3),
        "everything_read_seconds": round(everything, 3),
        "each_look_seconds": round(each, 3),
        "open_a_run_seconds": round(opened, 3),
        "runs_listed": len(answer["runs"]),
    }
    return {"figures": figures, "settings": {"runs": RUNS, "rounds": ROUNDS, "clients": CLIENTS}}


def _request(address: str) -> tuple[float, Any]:
    started = time.perf_counter()
    with urllib.request.urlopen(address) as answer:
        content = json.load(answer)
    return time.perf_counter() - started, content


def fill(root: Path, runs: int, rounds: int, clients: int) -> None:
    """Write run folders with files of realistic sizes."""
    for number in range(runs):
        folder = root / f"sweep-{number // 100}" / f"run-{number:04d}"
        folder.mkdir(parents=True)
        method = ("local", "fedavg", "fedproto", "fedgh")[number % 4]
        config = {
            "name": folder.name,
            "method": {"name": method},
            "data": {"dataset": "digits", "partition": {"scheme": "dirichlet", "alpha": 0.1}},
            "clients": clients,
            "rounds": rounds,
            "seed": number,
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        finished = number % UNFINISHED > 0
        (folder / "events.jsonl").write_text(_events(rounds if finished else rounds // 2, clients, number % KINDS))
        if finished:
            records = _records(rounds, clients, number % KINDS)
            (folder / "result.json").write_text(json.dumps(result(config, records), indent=1))


@functools.cache
def _records(rounds: int, clients: int, kind: int) -> list[dict[str, Any]]:
    return [record(number, rounds, clients, kind) for number in range(1, rounds + 1)]


def record(number: int, rounds: int, clients: int, kind: int) -> dict[str, Any]:
    """Return the record of a round on a rising learning curve."""
    value = 0.9 - 0.8 / (1 + 5 * number / rounds) - kind / 50
    by_client = [max(0.0, value - k / 100) for k in range(clients)]
    return {
        "round": number,
        "accuracy": {name: {"value": value, "by_client": by_client} for name in ("personal", "global")},
        "loss": 2.3 * (1 - value),
        "up": {"prototypes": 1000 + kind},
        "down": {"prototypes": 2000},
        "seconds": {"total": 0.5},
        "failures": [],
    }


@functools.cache
def _events(rounds: int, clients: int, kind: int) -> str:
    events: list[dict[str, Any]] = []
    for one in _records(rounds, clients, kind):
        left = {"time": 0.0, "round": one["round"], "step": "train", "fields": {"prototypes": 50}}
        events += [{**left, "client": str(k), "event": "left"} for k in range(clients)]
        events.append({"time": 0.0, **one, "event": "round"})
    return "".join(json.dumps(event) + "\n" for event in events)


def result(config: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the `result.json` for these rounds."""
    accuracy = {}
    for kind in ("personal", "global"):
        by_round = [each["accuracy"][kind]["value"] for each in records]
        accuracy[kind] = {
            "final": by_round[-1],
            "best": max(by_round),
            "by_client": records[-1]["accuracy"][kind]["by_client"],
            "by_round": by_round,
        }
    ways = {way: [sum(each[way].values()) for each in records] for way in ("up", "down")}
    return {
        "name": config["name"],
        "method": config["method"]["name"],
        "seed": config["seed"],
        "rounds": config["rounds"],
        "clients": config["clients"],
        "data": {"dataset": config["data"]["dataset"]},
        "accuracy": accuracy,
        "loss": {"by_round": [each["loss"] for each in records]},
        "bytes": {**{k: sum(v) for k, v in ways.items()}, **{f"{k}_by_round": v for k, v in ways.items()}},
        "seconds": {"total": 0.5 * len(records), "by_round": [0.5] * len(records)},
        "failures": [],
    }
