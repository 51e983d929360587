"""Damage run folders in every way of `tests/runs/damage.py`, and run every command that reads run folders on them.

Every command must end with a result or with one sentence, must not show files from outside of the run folder, and must still
show the sound run next to the damaged one. Each case runs in a process of its own, with limits of time and memory.

    python scripts/damaged_folders.py                       # all cases: more than an hour
    python scripts/damaged_folders.py --only 'events.jsonl' # cases whose name contains a text
    python scripts/damaged_folders.py --every 10            # every tenth case
    python scripts/damaged_folders.py --save                # write the counts for docs/reliability.md
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from scripts.reliability import results
from tests.runs import damage
from tests.runs.damaged_commands import COMMANDS, attempt, sound_runs, warm_up


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the cases whose name contains this text")
    parser.add_argument("--commands", default=",".join(COMMANDS), help="commands, separated by commas")
    parser.add_argument("--every", type=int, default=1, help="run every n-th case")
    parser.add_argument("--save", action="store_true", help="write one result file for each command")
    chosen = parser.parse_args()
    all_problems = all_cases = 0
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        outside = base / "outside.txt"
        finished, stopped = sound_runs(base / "sound", outside)
        for command in chosen.commands.split(","):
            sound = stopped if command == "resume" else finished
            work = base / f"work-{command}"
            warm_up(command, sound, work)
            named = [case for case in damage.cases(sound, outside) if chosen.only in case.name]
            cases = named[:: chosen.every]
            problems = []
            for done, case in enumerate(cases, 1):
                problem = attempt(command, case, sound, work)
                if problem:
                    problems.append(f"{case.name}: {problem}")
                    print(f"{command}: {problems[-1]}", flush=True)
                if chosen.save and (done % 25 == 0 or done == len(cases)):
                    figures = {"cases": len(named), "done": done, "problems": problems}
                    results.save(f"damaged-{command}", figures)
            all_cases += len(cases)
            all_problems += len(problems)
    print(f"{all_cases} cases, {all_problems} problems")
    return 1 if all_problems else 0


if __name__ == "__main__":
    sys.exit(main())
