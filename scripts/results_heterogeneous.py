"""Writes docs/results/heterogeneous.md: every data-free method for different models, on digits and on Fashion-MNIST.

    .venv/bin/python scripts/results_heterogeneous.py [--jobs 2] [--out runs/results-heterogeneous]

Runs that are finished are not run again, so it can be stopped and started. Fashion-MNIST must be there: Debian's
package dataset-fashion-mnist, `--root FOLDER` with its idx files, or the Hugging Face hub.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from polyfed.comparison import compare
from polyfed.runs.folder import RunFolder

METHODS = "local,lg-fedavg,feddistill,fedproto,fedgh,fml,fedkd,fedtgp,fedgen,fedktl-lite,ccvr,fedtype,pfedafm"
SEEDS = "0,1,2"
SETTINGS = {
    "digits": ("quickstart", []),
    "fashion-mnist": (
        "fashion-mnist-20",
        ["train.batch_size=10", "evaluate.every=5"],
    ),
}
TITLES = {
    "digits": "digits: 20 clients, Dirichlet 0.1, `tiny4`, 10 rounds, batch 10, SGD 0.01",
    "fashion-mnist": "Fashion-MNIST: 6,000 training and 2,000 test samples, 20 clients, Dirichlet 0.1, `tiny4`, "
    "30 rounds, batch 10, SGD 0.01, measured every 5 rounds",
}
INTRODUCTION = """# Methods for clients with different models

Written by `scripts/results_heterogeneous.py` from its run folders; three seeds (0, 1, 2), mean and standard deviation
over seeds. CPU-sized settings: not comparable with any published number. *Final* is the last round, *best* the best
round, chosen on test data. *Personal*: each client on its own held-out share. *Global*: each client on the common
test set. Seconds are of runs that shared two cores, two at a time: compare them with each other only.
"""
PAGE = Path(__file__).parent.parent / "docs" / "results" / "heterogeneous.md"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--jobs", default="2")
    arguments.add_argument("--out", type=Path, default=Path("runs/results-heterogeneous"))
    arguments.add_argument("--root", help="folder with Fashion-MNIST's idx files")
    chosen = arguments.parse_args()
    commands = []
    for name, (preset, overrides) in SETTINGS.items():
        more = [f"data.root={chosen.root}"] if chosen.root and name == "fashion-mnist" else []
        command = ["sweep", preset, f"method={METHODS}", *overrides, *more, "--seeds", SEEDS]
        command += ["--out", str(chosen.out / name), "--jobs", chosen.jobs]
        subprocess.run([sys.executable, "-m", "polyfed", *command], check=True)
        commands.append(" ".join(["polyfed", *command]))
    PAGE.write_text(page(chosen.out, commands))


def page(folder: Path, commands: list[str]) -> str:
    """The whole page, from the run folders alone."""
    first = next(folder.rglob("config.yaml"))
    versions = RunFolder(first.parent).config()["versions"]
    lines = [
        INTRODUCTION,
        f"Versions: {', '.join(f'{name} {value}' for name, value in versions.items() if name != 'code')}.",
        "",
    ]
    for name, command in zip(SETTINGS, commands, strict=True):
        lines += [
            f"## {TITLES[name]}",
            "",
            "<!-- checked: takes minutes to hours -->",
            "```bash",
            command,
            "```",
            "",
            compare([folder / name], baseline=None).to("md"),
            "",
        ]
        lines += also(folder / name)
    notes = PAGE.with_suffix(".notes.md")
    if notes.exists():
        lines += ["## What to read from it", "", notes.read_text()]
    return "\n".join(lines).rstrip() + "\n"


def also(folder: Path) -> list[str]:
    """Other ways of predicting with the same models, for methods that have any."""
    found: dict[tuple[str, str], list[float]] = {}
    for path in sorted(folder.rglob("result.json")):
        result = RunFolder(path.parent).result() or {}
        for way, facts in (result["accuracy"]["personal"] or {}).get("also", {}).items():
            found.setdefault((result["method"], way), []).append(facts["final"])
    if not found:
        return []
    shown = [
        f"{method} by its {way}: {100 * sum(values) / len(values):.2f} %" for (method, way), values in found.items()
    ]
    return [
        "Personal accuracy, last round, by another way of predicting with the same models: " + "; ".join(shown) + ".",
        "",
    ]


if __name__ == "__main__":
    main()
