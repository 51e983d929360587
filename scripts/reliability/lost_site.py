"""Measure how long a round waits for a site that dies while it has a call.

    python scripts/reliability/lost_site.py --moments 5

A site is stopped (SIGSTOP). When its SuperNode has received the next call, both are killed with SIGKILL, as if the
machine lost power. The script measures the seconds from the kill to the end of the round. Then it starts the site
again, and repeats this when the site is back. The last measurements are made in a federation without keys.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.reliability import results
from scripts.reliability.federation import Federation, read_events, run_federation
from scripts.reliability.processes import SUPERNODE, children, kill


def lose_site(federation: Federation, name: str) -> dict[str, Any]:
    """Kill a site that has a call. Return the seconds until the round has finished."""
    site = federation.sites.pop(name)  # so that the federation does not start it again at once
    log = federation.folder / name / "supernode.log"
    os.kill(site.pid, signal.SIGSTOP)

    def has_call() -> bool:  # it may have had one when it was stopped
        text = log.read_text()
        return text.count("Receiving:") > text.count("Sending:")

    federation.wait(has_call, "the next call")
    before, victims = federation.rounds(), children(site.pid, SUPERNODE)
    kill(site.pid, *victims)
    seconds = federation.wait_for_rounds(before + 1)
    finished = [event for event in read_events(federation.run) if event.get("event") == "round"][before]
    reasons = {failure["client"]: failure["message"] for failure in finished["failures"]}
    site.wait(60)
    calls = federation.calls_of(name)
    federation.start_site(name)
    back = federation.wait(lambda: federation.calls_of(name) > calls, "the return of the site")
    return {"seconds": round(seconds, 1), "back": round(back, 1), "reasons": reasons}


def measure(folder: Path, moments: int, *, keys: bool) -> list[dict[str, Any]]:
    with run_federation(folder, ["ana", "ben", "cleo"], keys=keys) as federation:
        federation.next_run("lost", 1000)
        federation.wait_for_rounds(2)
        measured = []
        for number in range(moments):
            measured.append(lose_site(federation, federation.names[number % 3]))
            print(measured[-1], flush=True)
        return measured


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=5, help="number of kills with keys; half as many without")
    parser.add_argument("--out", type=Path, default=results.FOLDER)
    chosen = parser.parse_args()
    figures: dict[str, Any] = {}
    for name, count in (("keys", chosen.moments), ("insecure", chosen.moments // 2)):
        with tempfile.TemporaryDirectory(prefix="lost-", ignore_cleanup_errors=True) as folder:
            figures[name] = measure(Path(folder), count, keys=name == "keys")
        results.save("lost-site", figures, chosen.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
