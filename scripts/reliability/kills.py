"""Kill processes with SIGKILL at random moments, again and again, and compare the bits of the result.

    python scripts/reliability/kills.py coordinator,superlink --moments 50

Targets: `main`, `worker` and `zygote` (the fork server of the pool) of a simulation; `coordinator` and `superlink`,
or `site`, `supernode` and `machine` (a site and its SuperNode at once), of a federation with keys and TLS. The result
must equal that of the undisturbed run, or, if sites have missed rounds, that of a run in one process in which the
same sites are absent in the same rounds. `--moments` is the number of kills of each target.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.reliability import federation_kills, results, simulation_kills

TARGETS = {
    **dict.fromkeys(("main", "worker", "zygote"), simulation_kills.kill_simulation),
    **dict.fromkeys(("coordinator", "superlink"), federation_kills.kill_coordinators),
    **dict.fromkeys(("site", "supernode", "machine"), federation_kills.kill_sites),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", help="one target, or several of one kind of federation, separated by commas")
    parser.add_argument("--moments", type=int, default=50, help="number of kills of each target")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    parser.add_argument("--out", type=Path, default=results.FOLDER, help="folder of the result file")
    chosen = parser.parse_args()
    targets = chosen.targets.split(",")
    if not set(targets) <= set(TARGETS) or len({TARGETS[target] for target in targets}) > 1:
        parser.error(f"unknown or incompatible targets {chosen.targets}; targets are {', '.join(TARGETS)}")
    name = f"kills-{'-'.join(targets)}"
    with tempfile.TemporaryDirectory(prefix="kills-", ignore_cleanup_errors=True) as folder:
        figures = TARGETS[targets[0]](
            Path(folder),
            targets,
            chosen.moments,
            chosen.seed,
            lambda figures: results.save(name, figures, chosen.out),
        )
    equal = sum(run["equal"] for run in figures["runs"])
    print(f"{len(figures['kills'])} kills in {len(figures['runs'])} runs; {equal} runs with equal bits")
    return 0 if equal == len(figures["runs"]) else 1


if __name__ == "__main__":
    sys.exit(main())
