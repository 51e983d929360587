"""Write the table of synchronisations and transfers into docs/devices.md, between the markers.

    python scripts/device_counts.py

Every method runs two rounds with two clients on the simulated device of the tests, with evaluation.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.device_runs import WORK, device_run  # noqa: E402

from polyfed import catalogue  # noqa: E402
from polyfed.testing.toy_federation import ToyFederation  # noqa: E402

PAGE = ROOT / "docs" / "devices.md"
START, END = "<!-- counts: written by scripts/device_counts.py -->", "<!-- end of counts -->"
HEAD = ("method", "training steps", "synchronisations per step", "transfers per step", "synchronisations per round",
        "transfers per round")  # fmt: skip


def row(name: str) -> list[str]:
    """Run a method on the simulated device and return its row."""
    with ToyFederation(catalogue.load(name), WORK.get(name, {})) as toy:
        run = device_run(toy)
    waits, copies = (max(values) for values in zip(*run.steps.between, strict=True))
    cells = (run.steps.steps, waits, copies, round(run.synchronisations / 2), round(run.transfers / 2))
    return [f"`{name}`", *map(str, cells)]


def main() -> None:
    rows = [row(name) for name in catalogue.methods() if name != "fedktl"]  # fedktl needs a user's generator
    lines = [f"| {' | '.join(cells)} |" for cells in (HEAD, ["---"] * len(HEAD), *rows)]
    before, _, rest = PAGE.read_text().partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n" + "\n".join(lines) + f"\n{END}{after}")


if __name__ == "__main__":
    main()
