"""Write docs/results/dffke.md: DFFKE compared with the methods of its paper, and its ablations on digits.

    .venv/bin/python scripts/results_dffke.py [--jobs 2] [--out runs/results-dffke] [--root FOLDER] [--only PART ...]

Finished runs are not repeated, so the script can be stopped and started again. It needs Fashion-MNIST: Debian's
package dataset-fashion-mnist, `--root FOLDER` with its idx files, or the Hugging Face hub.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pages

from polyfed.comparison import Run
from polyfed.config.loading import read_source

BASELINES = "local,lg-fedavg,fedgen,fedgh,fml,fedkd,feddistill,fedproto,fedtgp,fedktl-lite"
BASELINE_EPOCHS = 5  # in every round: DFFKE's clients train to a goal, which one epoch would leave others far from


def variant(name: str, preset: str) -> str:
    """Return the override that replaces a preset's method by a variant with the same fields."""
    return f"method={json.dumps({**read_source(preset)['method'], 'name': name})}"


SETTINGS = {
    "digits": (
        "dffke-digits",
        "digits: 10 clients, Dirichlet 0.1, `tiny4`, 8 rounds, batch 32, Adam 0.001",
    ),
    "fashion-mnist": (
        "dffke-fashion-mnist",
        "Fashion-MNIST: 2,000 training and 1,000 test samples, 10 clients, Dirichlet 0.1, `tiny4`, 6 rounds, batch 32, "
        "Adam 0.001",
    ),
}
# The paper's claim about each part, and the variants that are compared with the preset (`dffke`).
ABLATIONS: dict[str, tuple[str, str, dict[str, list[str]]]] = {
    "buffer": (
        "how many past rounds are reviewed",
        "Table 5 (CIFAR-100): none 38.2, 1 round 41.6, 5 rounds 44.2, all 47.5 %.",
        {
            "no buffer": ["method.buffer=0"],
            "last round": ["method.buffer=1"],
            "last 5 rounds": ["method.buffer=5"],
        },
    ),
    "participation": (
        "how many clients exchange",
        "Table 6 (CIFAR-100; the same clients in all rounds): 1 client 31.3, 2 clients 35.7, 5 clients 44.0, "
        "10 clients 47.5 %. Here others are drawn in every round, and clients count with the model that they have.",
        {"2 of 10": ["participation=0.2"], "5 of 10": ["participation=0.5"]},
    ),
    "tau": (
        "how far clients train by themselves",
        "Table 9 (CIFAR-100): tau 0.80 45.9, 0.90 46.9, 0.98 47.5 %.",
        {"tau 0.80": ["method.tau=0.8"], "tau 0.90": ["method.tau=0.9"], "tau 0.98": ["method.tau=0.98"]},
    ),
    "privacy": (
        "noise on embeddings",
        "Table 4 (CIFAR-100): 38.2 % without noise, 36.7 to 34.9 % for epsilon 1 to 0.25 per release, 34.6 % with pure "
        "noise, by a measured sensitivity that gives no guarantee and with noise in the docking layers only. Here rows "
        "are clipped to a norm of 10, epsilon (delta 1e-5) is that of all rounds together for embeddings alone, and "
        "weights, labels and answers leave as they are: this is the cost of the noise, not a private system. "
        "*Docking only* makes images from clean embeddings, as the released code does.",
        {
            "epsilon 100": ["privacy={embeddings: {clip: 10.0, epsilon: 100.0}}"],
            "epsilon 10": ["privacy={embeddings: {clip: 10.0, epsilon: 10.0}}"],
            "epsilon 10, docking only": [
                "privacy={embeddings: {clip: 10.0, epsilon: 10.0}}",
                "imports=[scripts/dffke_variants.py]",
                variant("dffke-docking-noise", "dffke-digits"),
            ],
        },
    ),
}
PARTS = (*SETTINGS, *ABLATIONS)
CLAIM = (
    "The paper (CIFAR and Tiny-ImageNet, ResNet-18 and larger, 10 clients, best of up to 50 rounds): on the common "
    "test set at Dirichlet 0.1, 43.2 % on CIFAR-10 where the best other has 34.2 %, and 38.2 % on CIFAR-100 where it "
    "has 20.1 %. On clients' own distributions 95.8 % against 94.8 %, and 77.0 % against 76.5 %. It does not show local "
    "training."
)
EXPLAINED = (
    f"*Global* is the paper's *classic* accuracy: for DFFKE right after the exchange, for the others at the end of a "
    f"round. *Personal* is after local training. DFFKE trains until a client is right about all of its samples, the "
    f"others {BASELINE_EPOCHS} epochs a round. Steps and widths of DFFKE are those of its presets, a small part of the "
    "published ones."
)


@dataclass(frozen=True)
class Script:
    """Where run folders are written, and how runs are started."""

    out: Path
    seeds: str
    jobs: str
    root: str | None
    more: Sequence[str]  # overrides of this call, for a trial on few rounds

    def sweep(self, name: str, preset: str, axes: Sequence[str]) -> str:
        private = [f"data.root={self.root}"] if self.root and "fashion" in preset else []
        return pages.sweep(
            preset, [*axes, *self.more], seeds=self.seeds, out=self.out / name, jobs=self.jobs, private=private
        )

    def comparison(self, name: str) -> str:
        """Compare DFFKE with the other methods in one table."""
        preset, title = SETTINGS[name]
        commands = [
            self.sweep(name, preset, []),
            self.sweep(f"{name}-others", preset, [f"method={BASELINES}", f"train.epochs={BASELINE_EPOCHS}"]),
        ]
        folders = [self.out / name, self.out / f"{name}-others"]
        words = "Personal accuracy as the paper takes it: the plain mean over clients, whatever their test samples."
        as_paper = pages.comparison_table(folders, metric="client_mean")
        return pages.section(title, pages.comparison_table(folders), words, as_paper, commands=commands)

    def ablation(self, name: str) -> str:
        """Compare DFFKE on digits with variants of one of its parts."""
        heading, claim, variants = ABLATIONS[name]
        commands = [self.sweep("digits", "dffke-digits", [])]
        folders = {"dffke": "digits"}
        for label, overrides in variants.items():
            folders[label] = f"{name}/{label.replace(' ', '-').replace(',', '')}"
            commands.append(self.sweep(folders[label], "dffke-digits", overrides))
        runs = {label: pages.finished_runs([self.out / folder]) for label, folder in folders.items()}
        words = f"The paper: {claim}"
        return pages.section(f"Ablation on digits: {heading}", words, variants_table(runs), commands=commands[1:])


def variants_table(runs: Mapping[str, Sequence[Run]]) -> str:
    """Return a table of accuracies in percent, and seconds per run."""
    rows = []
    for label, finished in runs.items():
        accuracy = [
            [100 * float(run.result["accuracy"][kind][which]) for run in finished]
            for kind, which in (("global", "final"), ("global", "best"), ("personal", "final"))
        ]
        seconds = [float(run.result["seconds"]["total"]) for run in finished]
        rows.append([label, *(pages.mean_and_std(values) for values in accuracy), pages.mean_and_std(seconds, 0)])
    return pages.markdown_table(["variant", "global, final", "global, best", "personal, final", "seconds"], rows)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--jobs", default="2")
    arguments.add_argument("--seeds", default="0,1,2")
    arguments.add_argument("--out", type=Path, default=Path("runs/results-dffke"))
    arguments.add_argument("--root", help="folder with Fashion-MNIST's idx files")
    arguments.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), help="some parts of the page")
    arguments.add_argument("--page", default="dffke", help="name of the page in docs/results")
    arguments.add_argument("--more", nargs="*", default=[], metavar="KEY=VALUE", help="for a trial, e.g. rounds=2")
    chosen = arguments.parse_args()
    script = Script(chosen.out, chosen.seeds, chosen.jobs, chosen.root, chosen.more)
    parts = [
        script.comparison(part) if part in SETTINGS else script.ablation(part)
        for part in PARTS
        if part in chosen.only
    ]
    introduction = [
        "# DFFKE: exchange on synthetic images\n",
        f"Written by `scripts/results_dffke.py` from its run folders; seeds {chosen.seeds}, mean and sample standard "
        f"deviation over them. {pages.CAPTION}\n",
        EXPLAINED + "\n",
        CLAIM + "\n",
        pages.versions(chosen.out),
    ]
    pages.write(chosen.page, *introduction, *parts)


if __name__ == "__main__":
    main()
