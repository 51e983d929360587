"""Kill the processes of a federation at random moments: coordinator, SuperLink, site, SuperNode, a whole machine."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scripts.reliability.federation import Federation, run_federation
from scripts.reliability.processes import SUPERLINK, SUPERNODE, children, kill

ROUNDS = 30  # of one run; a new run starts when it has finished
ROUND_SECONDS = 2.0  # a round takes about as long
START_SECONDS = 12.0  # and the start of a coordinator
AT_START = 0.25  # fraction of kills of a coordinator while it starts
Save = Callable[[dict[str, Any]], None]


def kill_coordinators(folder: Path, targets: Sequence[str], moments: int, seed: int, save: Save) -> dict[str, Any]:
    """Kill the coordinator or its SuperLink. The coordinator is started again whenever it has ended.

    `seconds` is the time until the next round has finished.
    """
    draws = random.Random(f"{targets}-{seed}")
    figures: dict[str, Any] = {"seed": seed, "kills": [], "runs": []}
    kills = figures["kills"]
    with run_federation(folder, ["ana", "ben"]) as federation:
        while _remaining(kills, targets, moments):
            before = federation.next_run(f"run{len(figures['runs'])}", ROUNDS)
            while (remaining := _remaining(kills, targets, moments)) and not federation.finished():
                at_start = draws.random() < AT_START
                if not at_start:
                    federation.wait_for_rounds(before + 1)
                time.sleep(draws.uniform(0, START_SECONDS if at_start else ROUND_SECONDS))
                federation.keep_running()
                target, pid = draws.choice(remaining), federation.coordinator.pid
                victims = [pid] if target == "coordinator" else children(pid, SUPERLINK)
                if federation.finished() or not victims:
                    continue
                before = federation.rounds()
                kill(*victims)
                seconds = round(federation.wait_for_rounds(before + 1), 1)
                kills.append({"target": target, "phase": "start" if at_start else "round", "seconds": seconds})
                save(figures)
            figures["runs"].append(federation.finish())
            save(figures)
    return figures


def kill_sites(folder: Path, targets: Sequence[str], moments: int, seed: int, save: Save) -> dict[str, Any]:
    """Kill sites, their SuperNodes, or both at once (`machine`). Sites are started again at once.

    At most half of the sites are down at a time, so every round has replies. `seconds` is the time until the next
    round has finished, `back` the time until the site takes part again.
    """
    draws = random.Random(f"{targets}-{seed}")
    figures: dict[str, Any] = {"seed": seed, "kills": [], "runs": []}
    kills = figures["kills"]
    down: dict[str, tuple[float, int, dict[str, Any]]] = {}

    def note_returns() -> None:
        for name, (start, calls, record) in list(down.items()):
            if federation.calls_of(name) > calls:
                record["back"] = round(time.monotonic() - start, 1)
                del down[name]

    with run_federation(folder, ["ana", "ben", "cleo", "dan"]) as federation:
        while _remaining(kills, targets, moments):
            down.clear()
            federation.next_run(f"run{len(figures['runs'])}", ROUNDS)
            federation.wait_for_rounds(1)
            while (remaining := _remaining(kills, targets, moments)) and not federation.finished():
                time.sleep(draws.uniform(0, ROUND_SECONDS))
                federation.keep_running()
                note_returns()
                up = [name for name in federation.names if name not in down]
                if federation.finished() or len(down) >= len(up):
                    continue
                name, target, before = draws.choice(up), draws.choice(remaining), federation.rounds()
                record: dict[str, Any] = {"target": target, "phase": "round"}
                down[name] = (time.monotonic(), federation.calls_of(name), record)
                _kill_site(federation, name, target)
                record["seconds"] = round(federation.wait_for_rounds(before + 1), 1)
                kills.append(record)
                save(figures)
            figures["runs"].append(federation.finish(note_returns))
            save(figures)
    return figures


def _remaining(kills: Sequence[dict[str, Any]], targets: Sequence[str], moments: int) -> list[str]:
    """Return the targets that have not been killed often enough."""
    return [target for target in targets if sum(one["target"] == target for one in kills) < moments]


def _kill_site(federation: Federation, name: str, target: str) -> None:
    site = federation.sites[name]
    supernodes = children(site.pid, SUPERNODE)
    if target == "supernode":
        kill(*supernodes)  # the site starts another one itself
        return
    kill(site.pid, *(supernodes if target == "machine" else []))
    site.wait(60)
    federation.start_site(name)
