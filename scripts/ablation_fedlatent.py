"""Write docs/results/fedlatent.md: FedLatent, its baselines, and what each of its parts contributes.

    .venv/bin/python scripts/ablation_fedlatent.py [--seeds 0,1,2] [--out runs/ablation-fedlatent] [--jobs 1]

Finished runs are not repeated, so you can stop the script and start it again. It needs no download.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pages

from polyfed.comparison import Run, load_runs

PRESET = "fedlatent-digits"
MIB = 1 << 20
VARIANTS = "imports=[scripts/fedlatent_variants.py]"
FEDVTC = [
    "method=fedvtc",
    "method.vtc=regular",
    "method.samples_per_class=200",
    "method.finetune_lr=0.001",
    "method.recompute=false",
]
# name in the table: overrides of the preset
MAIN: dict[str, list[str]] = {
    "local": ["method=local"],
    "fedproto": ["method=fedproto"],
    "fedavg, one common tiny-cnn": ["method=fedavg", "models.group=[tiny-cnn]"],
    "fedvtc, decoders averaged every round": FEDVTC,
    "fedlatent": [],
}
ABLATION: dict[str, list[str]] = {
    "weight of reconstruction 1": ["method.reconstruction=1.0"],
    "variances without directions": ["method.rank=0"],
    "means without variances": ["method=fedlatent-means-only", VARIANTS],
    "no real images": ["method.real_ratio=0.0"],
    "decoders averaged once": ["method=fedlatent-averaged-once", VARIANTS],
    "no noise": ["method.noise=0.0"],
    "no interpolation": ["method.interpolation=1.0"],
}
INTRODUCTION = """# FedLatent: results and ablation

Written by `scripts/ablation_fedlatent.py` from its run folders. Digits (8x8 pixels), 5 clients with the four architectures of `tiny4`
(FedAvg: one common `tiny-cnn`), features of 16x2x2 numbers, Dirichlet 0.1, Adam 0.003, batch size 32, two local epochs per round,
all clients in every round. These are small settings for a CPU; do not compare them with published numbers.

*Global* is the mean accuracy of the clients' models on the common test set, *personal* the accuracy of each model on the held-out
data of its own client, both after the last round. *Before fine-tuning* is the accuracy of the same run's models before fine-tuning. *Traffic* is the sum of uploads
and downloads of all clients. Values are mean ± sample standard deviation over seeds; *vs. local* is the mean difference to local
training with the same seed and number of rounds.

The options of FedLatent were chosen on seeds 10 to 12, without the test set: a fifth of the training data was taken away from the
clients and served as the common test set. One caveat: an earlier version (`finetune_lr` 0.001, no interpolation) was run on seeds 0 to 2 first
(global 91.7 % after 20 and 93.5 % after 60 rounds, personal accuracy 1.2 and 2.8 points below local training). Its loss of
personal accuracy was the reason to try other values, which were then chosen on seeds 10 and 12. The options of FedVTC follow
earlier runs on the test set with seeds 0 to 3, which favours FedVTC. The other methods run with their defaults.
"""


@dataclass(frozen=True)
class Script:
    """Where runs go, and how they are run."""

    out: Path
    seeds: str
    jobs: str
    more: Sequence[str]
    finished: bool  # write the page from finished rows only, and run nothing

    def run(self, name: str, overrides: Sequence[str], rounds: int) -> tuple[str, list[Run]]:
        """Run one row of a table; return the command and the finished runs."""
        folder = self.out / f"{rounds}-{name.replace(' ', '-').replace(',', '')}"
        axes = [f"rounds={rounds}", f"evaluate.every={rounds}", "engine.name=serial", *overrides, *self.more]
        ending = ["--seeds", self.seeds, "--out", str(folder), "--jobs", self.jobs]
        command = shlex.join(["polyfed", "sweep", PRESET, *axes, *ending])
        if self.finished:
            runs = load_runs([folder])[0] if any(folder.rglob("result.json")) else []
        else:
            pages.sweep(PRESET, axes, seeds=self.seeds, out=folder, jobs=self.jobs)
            runs = pages.finished_runs([folder])
        return command, sorted(runs, key=lambda run: int(run.config["seed"]))

    def part(self, title: str, rows: Mapping[str, Sequence[str]], rounds: int, local: Sequence[Run] = ()) -> str:
        """Return a section with one row per setting, compared with local training."""
        done = {name: self.run(name, overrides, rounds) for name, overrides in rows.items()}
        done = {name: found for name, found in done.items() if len(found[1]) == len(self.seeds.split(","))}
        baseline = local or done["local"][1]
        cells = [row(name, runs, baseline) for name, (_, runs) in done.items()]
        head = ["method", "global, %", "vs. local", "personal, %", "vs. local", "global before fine-tuning, %"]
        table = pages.markdown_table([*head, "personal before fine-tuning, %", "traffic, MiB", "seconds"], cells)
        each = [each_seed(name, run) for name, (_, runs) in done.items() for run in runs]
        seeds = pages.markdown_table(["method", "seed", "global, %", "personal, %", "state_hash"], each)
        commands = [command for command, _ in done.values()]
        return pages.section(title, table, "Single runs:", seeds, commands=commands)


def accuracy(run: Run, kind: str, way: str | None = None) -> float | None:
    """Return the final accuracy in per cent; None if the method has no such prediction."""
    found: Mapping[str, Any] | None = run.result["accuracy"][kind]
    if way is not None and found is not None:
        found = found.get("also", {}).get(way)
    return None if found is None else 100 * float(found["final"])


def row(name: str, runs: Sequence[Run], local: Sequence[Run]) -> list[str]:
    cells = [name]
    for kind in ("global", "personal"):
        values = [v for run in runs if (v := accuracy(run, kind)) is not None]
        usual = [v for run in local if (v := accuracy(run, kind)) is not None]
        gains = [a - b for a, b in zip(values, usual, strict=True)]
        cells += [pages.mean_and_std(values, 1), pages.mean_and_std(gains, 1, sign=True)]
    for kind in ("global", "personal"):
        cells.append(pages.mean_and_std([v for run in runs if (v := accuracy(run, kind, "untuned")) is not None], 1))
    traffic = [(run.result["bytes"]["up"] + run.result["bytes"]["down"]) / MIB for run in runs]
    return [
        *cells,
        pages.mean_and_std(traffic, 1),
        pages.mean_and_std([run.result["seconds"]["total"] for run in runs], 0),
    ]


def each_seed(name: str, run: Run) -> list[str]:
    values = [f"{accuracy(run, kind):.2f}" for kind in ("global", "personal")]
    return [name, str(run.config["seed"]), *values, f"`{run.result['state_hash'][:16]}`"]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--jobs", default="1")
    arguments.add_argument("--seeds", default="0,1,2")
    arguments.add_argument("--out", type=Path, default=Path("runs/ablation-fedlatent"))
    arguments.add_argument("--page", default="fedlatent", help="name of the page in docs/results")
    arguments.add_argument("--rounds", type=int, nargs=2, default=[20, 60], metavar=("SHORT", "LONG"))
    arguments.add_argument(
        "--more", nargs="*", default=[], metavar="KEY=VALUE", help="further overrides, for a trial"
    )
    arguments.add_argument(
        "--finished", action="store_true", help="run nothing; leave out rows that are not finished"
    )
    given = arguments.parse_args()
    script, (short, long) = Script(given.out, given.seeds, given.jobs, given.more, given.finished), given.rounds
    parts = [script.part(f"{short} rounds", MAIN, short), script.part(f"{long} rounds", MAIN, long)]
    _, local = script.run("local", MAIN["local"], short)
    rows = {"fedlatent": MAIN["fedlatent"], **ABLATION}
    parts.append(script.part(f"Ablation, {short} rounds", rows, short, local))
    pages.write(given.page, INTRODUCTION, pages.versions(given.out), *parts)


if __name__ == "__main__":
    main()
