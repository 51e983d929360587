"""Print the branch coverage of every room, and fail if one of the five inner rooms is below 90 %.

make coverage                                    runs all tests and prints the table
python scripts/coverage_rooms.py --missed core   lists the lines of a room that no test reaches
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

REQUIRED = ("core", "engines", "runs", "guards", "deploy")
LEAST = 90.0  # % of lines and branches
PACKAGE = "src/polyfed/"


def files() -> dict[str, Any]:
    """Return coverage.py's data of every file of the package, by its path below the package."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "coverage.json"
        subprocess.run([sys.executable, "-m", "coverage", "json", "-q", "-o", str(path)], check=True)
        data = json.loads(path.read_text())["files"]
    return {name.partition(PACKAGE)[2]: entry for name, entry in data.items() if PACKAGE in name}


def percentages(data: dict[str, Any]) -> dict[str, tuple[float, int]]:
    """Return by room the share of lines and branches that tests reach, in %, and the number of lines."""
    reached: dict[str, int] = defaultdict(int)
    total: dict[str, int] = defaultdict(int)
    lines: dict[str, int] = defaultdict(int)
    for name, entry in data.items():
        room, summary = name.split("/")[0].removesuffix(".py"), entry["summary"]
        reached[room] += summary["covered_lines"] + summary["covered_branches"]
        total[room] += summary["num_statements"] + summary["num_branches"]
        lines[room] += summary["num_statements"]
    return {room: (100 * reached[room] / max(1, total[room]), lines[room]) for room in sorted(total)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--missed", metavar="ROOM", help="list the lines and branches of a room that no test reaches")
    parser.add_argument("--rooms", nargs="*", default=REQUIRED, help="the rooms that must reach 90 %%")
    options = parser.parse_args()
    data = files()
    if options.missed:
        for name, entry in data.items():
            if name.split("/")[0].removesuffix(".py") == options.missed and entry["summary"]["percent_covered"] < 100:
                print(f"{name}: {entry['summary']['percent_covered']:.0f} %")
                print(f"  lines {entry['missing_lines']}\n  branches {entry['missing_branches']}")
        return 0
    shares = percentages(data)
    print("| room | lines | reached |\n|---|---|---|")
    for room, (share, lines) in shares.items():
        print(f"| `{room}` | {lines} | {share:.1f} % |")
    low = [room for room in options.rooms if shares.get(room, (0.0, 0))[0] < LEAST]
    if low:
        print(f"Below {LEAST:g} %: {', '.join(low)}", file=sys.stderr)
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
