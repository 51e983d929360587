"""Damage run folders in every way of `tests/runs/damage.py`, and run every command that reads run folders on them.

Every command must end with a result or with one sentence, must not show files from outside of the run folder, and must still
show the sound run next to the damaged one. Each case runs in a process of its own, with limits of time and memory. A
t-SNE embedding of reports is computed once for the same features, because it takes half of the time of a report.

    python scripts/damaged_folders.py                       # all cases: about 40 minutes of computing time
    python scripts/damaged_folders.py --only 'events.jsonl' # cases whose name contains a text
    python scripts/damaged_folders.py --every 10            # every tenth case
    python scripts/damaged_folders.py --save                # write the counts for docs/reliability.md
    python scripts/damaged_folders.py --save --resume --seconds 300     # continue after the saved cases for five minutes
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
from scripts.reliability import results
from tests.runs import damage
from tests.runs.damaged_commands import COMMANDS, attempt, sound_runs, warm_up

from polyfed.analysis import tsne


def embed_once(folder: Path) -> None:
    """Keep t-SNE embeddings in a folder, by the vectors that they show."""
    folder.mkdir()
    embed = tsne.tsne_embedding

    def tsne_embedding(vectors: np.ndarray[Any, Any], *, seed: int = tsne.SEED) -> np.ndarray[Any, Any]:
        key = repr((vectors.shape, str(vectors.dtype), seed)).encode() + vectors.tobytes()
        file = folder / f"{hashlib.sha256(key).hexdigest()}.npy"
        if not file.exists():
            np.save(file, embed(vectors, seed=seed))
        return np.asarray(np.load(file))

    tsne.tsne_embedding = tsne_embedding


def saved(folder: Path, command: str) -> tuple[int, list[str]]:
    """Return the number of cases and the problems in the result file of a command."""
    file = folder / f"damaged-{command}.json"
    content = json.loads(file.read_text()) if file.exists() else {"done": 0, "problems": []}
    return content["done"], content["problems"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the cases whose name contains this text")
    parser.add_argument("--commands", default=",".join(COMMANDS), help="commands, separated by commas")
    parser.add_argument("--every", type=int, default=1, help="run every n-th case")
    parser.add_argument("--save", action="store_true", help="write one result file for each command")
    parser.add_argument("--resume", action="store_true", help="continue after the cases in the result files")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this many seconds")
    parser.add_argument("--out", type=Path, default=results.FOLDER, help="folder of the result files")
    chosen = parser.parse_args()
    deadline = time.monotonic() + chosen.seconds
    all_problems = all_cases = 0
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        outside = base / "outside.txt"
        finished, stopped = sound_runs(base / "sound", outside)
        embed_once(base / "embeddings")
        for command in chosen.commands.split(","):
            sound = stopped if command == "resume" else finished
            work = base / f"work-{command}"
            warm_up(command, sound, work)
            named = [case for case in damage.cases(sound, outside) if chosen.only in case.name]
            cases = named[:: chosen.every]
            before, problems = saved(chosen.out, command) if chosen.resume else (0, [])
            for done, case in enumerate(cases[before:], before + 1):
                all_cases += 1
                in_time = time.monotonic() < deadline
                problem = attempt(command, case, sound, work)
                if problem:
                    problems.append(f"{case.name}: {problem}")
                    print(f"{command}: {problems[-1]}", flush=True)
                if chosen.save and (done % 25 == 0 or done == len(cases) or not in_time):
                    figures = {"cases": len(named), "done": done, "problems": problems}
                    results.save(f"damaged-{command}", figures, chosen.out)
                if not in_time:
                    break
            all_problems += len(problems)
    print(f"{all_cases} cases, {all_problems} problems")
    return 1 if all_problems else 0


if __name__ == "__main__":
    sys.exit(main())
