"""Kill the processes of a federation at random moments: coordinator, SuperLink, site, SuperNode, a whole machine."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.reliability.federation import Federation, run_federation
from scripts.reliability.processes import SUPERLINK, SUPERNODE, children, kill

ROUNDS, SITE_ROUNDS = 20, 25  # of one run; a new run starts when it has finished
ROUND_SECONDS = 5.0  # a round takes about as long
START_SECONDS = 12.0  # and the start of a coordinator
AT_START = 0.25  # fraction of kills of a coordinator while it starts
Save = Callable[[dict[str, Any]], None]


def kill_coordinator(folder: Path, target: str, moments: int, seed: int, save: Save) -> dict[str, Any]:
    """Kill the coordinator or its SuperLink, and start the coordinator again whenever it has ended."""
    draws = random.Random(f"{target}-{seed}")
    figures: dict[str, Any] = {"target": target, "seed": seed, "kills": [], "runs": []}
    kills = figures["kills"]
    with run_federation(folder, ["ana", "ben"]) as federation:
        while len(kills) < moments:
            before = federation.next_run(f"run{len(figures['runs'])}", ROUNDS)
            while len(kills) < moments and not federation.finished():
                at_start = draws.random() < AT_START
                if not at_start:
                    federation.wait_for_rounds(before + 1)
                time.sleep(draws.uniform(0, START_SECONDS if at_start else ROUND_SECONDS))
                coordinator = federation.coordinator
                victims = [coordinator.pid] if target == "coordinator" else children(coordinator.pid, SUPERLINK)
                if federation.finished() or not victims:
                    continue
                before = federation.rounds()
                kill(*victims)
                seconds = federation.wait_for_rounds(before + 1)
                kills.append({"phase": "start" if at_start else "round", "seconds": round(seconds, 1)})
                save(figures)
            figures["runs"].append(federation.finish())
            save(figures)
    return figures


def kill_sites(folder: Path, target: str, moments: int, seed: int, save: Save) -> dict[str, Any]:
    """Kill sites, their SuperNodes, or both at once (`machine`). Sites are started again at once.

    At most half of the sites are down at a time, so every round has replies. `seconds` is the time until the next
    round has finished, `back` the time until the site takes part again.
    """
    draws = random.Random(f"{target}-{seed}")
    figures: dict[str, Any] = {"target": target, "seed": seed, "kills": [], "runs": []}
    kills = figures["kills"]
    down: dict[str, tuple[float, int, dict[str, Any]]] = {}

    def note_returns() -> None:
        for name, (start, calls, record) in list(down.items()):
            if federation.calls_of(name) > calls:
                record["back"] = round(time.monotonic() - start, 1)
                del down[name]

    with run_federation(folder, ["ana", "ben", "cleo", "dan"]) as federation:
        while len(kills) < moments:
            down.clear()
            federation.next_run(f"run{len(figures['runs'])}", SITE_ROUNDS)
            federation.wait_for_rounds(1)
            while len(kills) < moments and not federation.finished():
                time.sleep(draws.uniform(0, ROUND_SECONDS))
                note_returns()
                up = [name for name in federation.names if name not in down]
                if federation.finished() or len(down) >= len(up):
                    continue
                name, before = draws.choice(up), federation.rounds()
                record: dict[str, Any] = {"phase": "round"}
                down[name] = (time.monotonic(), federation.calls_of(name), record)
                _kill_site(federation, name, target)
                record["seconds"] = round(federation.wait_for_rounds(before + 1), 1)
                kills.append(record)
                save(figures)
            while down and not federation.finished():
                time.sleep(0.2)
                note_returns()
            figures["runs"].append(federation.finish())
            save(figures)
    return figures


def _kill_site(federation: Federation, name: str, target: str) -> None:
    site = federation.sites[name]
    supernodes = children(site.pid, SUPERNODE)
    if target == "supernode":
        kill(*supernodes)  # the site starts another one itself
        return
    kill(site.pid, *(supernodes if target == "machine" else []))
    site.wait(60)
    federation.start_site(name)
