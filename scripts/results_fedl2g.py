"""Write docs/results/fedl2g.md: FedL2G and its controls compared with other data-free methods, and its ablations.

    .venv/bin/python scripts/results_fedl2g.py [--jobs 2] [--out runs/results-fedl2g] [--reuse FOLDER]

Finished runs are not repeated, so the script can be interrupted and started again. The runs of the other methods are
those of scripts/results_heterogeneous.py: `--reuse` names their folder; without it this script runs them.
Fashion-MNIST must be available: Debian's package dataset-fashion-mnist, `--root FOLDER` with its idx files, or the
Hugging Face hub.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pages

from polyfed.comparison import Run
from polyfed.comparison.losses import loss_increase

BASELINES = "local,lg-fedavg,feddistill,fedproto,fedgh,fml,fedkd,fedtgp,fedgen,fedktl-lite,ccvr,fedtype,pfedafm"
FASHION = ["train.batch_size=10", "evaluate.every=5"]
TITLES = {
    "digits": "digits: 20 clients, Dirichlet 0.1, `tiny4`, 10 rounds, batch 10, SGD 0.01",
    "fashion-mnist": "Fashion-MNIST: 6,000 training and 2,000 test samples, 20 clients, Dirichlet 0.1, `tiny4`, "
    "30 rounds, batch 10, SGD 0.01, measured every 5 rounds",
}
RIVALS = ["method=local"]
BOTH = ["method=fedl2g", "method.space=logit,feature", "method.guidance=learned,frozen-random"]
# With Dirichlet 0.1, some of 100 clients would have only one of the 1,437 samples.
PARTITION = ["data.partition.alpha=0.5", "data.partition.min_size=4"]
# The degrees of model heterogeneity, all with 64 features.
GROUPS = {
    "1 model": "[tiny-cnn]",
    "2 models": "[tiny-cnn,tiny-resnet]",
    "4 models": "tiny4",
    "5 depths": "tiny-resnets",
    "9 with transformers": "[tiny-cnn,tiny-resnet,tiny-mobile,tiny-mlp,"
    "tiny-vit-2,tiny-vit-3,tiny-vit-4,tiny-vit-5,tiny-vit-6]",
}
INTRODUCTION = f"""# FedL2G: learned guiding vectors

Written by `scripts/results_fedl2g.py` from its run folders; seeds 0, 1 and 2, mean and sample standard deviation over
them. {pages.CAPTION} *Frozen-random* is the control: vectors stay at their random start, and nothing is learned about
them. FedL2G's warm-up precedes round 1 and trains no model, so all methods train equally many rounds.
"""


def label(config: Mapping[str, Any]) -> str:
    """Return the name of a variant of FedL2G, or of another method."""
    method = config["method"]
    if method["name"] != "fedl2g":
        return str(method["name"])
    variant = [str(method.get("space", "logit"))]
    variant += [] if method.get("guidance", "learned") == "learned" else [str(method["guidance"])]
    return f"fedl2g ({', '.join(variant)})"


@dataclass(frozen=True)
class Script:
    """The output folder and settings of all runs."""

    out: Path
    seeds: str
    jobs: str
    reuse: Path | None
    more: Sequence[str]  # overrides of this call, for a trial on few rounds
    root: str | None

    def sweep(self, name: str, preset: str, *axes: str) -> str:
        private = [f"data.root={self.root}"] if self.root and "fashion" in preset else []
        return pages.sweep(
            preset, [*axes, *self.more], seeds=self.seeds, out=self.out / name, jobs=self.jobs, private=private
        )

    def comparison(self, name: str, preset: str, overrides: Sequence[str], variants: Sequence[Sequence[str]]) -> str:
        """Return a table of FedL2G, its controls and all other methods."""
        commands = [self.sweep(name, preset, "method=fedl2g", *variant, *overrides) for variant in variants]
        folders = [self.out / name]
        if self.reuse is None:
            commands.append(self.sweep(name, preset, f"method={BASELINES}", *overrides))
        else:
            folders.append(self.reuse / name)
        runs = pages.finished_runs(folders)
        table = pages.comparison_table(pages.labelled_runs(folders, label))
        return pages.section(TITLES[name], table, losses(runs), commands=commands)

    def ablation(
        self,
        name: str,
        title: str,
        claim: str,
        axes: Sequence[Sequence[str]],
        column: Callable[[Run], str],
        columns: Sequence[str],
        row: Callable[[Run], str] = lambda run: label(run.config),
    ) -> str:
        """Return the personal accuracy of the last round by method and setting, with the claim of the paper."""
        commands = [self.sweep(name, "quickstart", *several) for several in axes]
        shown = pages.grid(pages.finished_runs([self.out / name]), row, column, columns, pages.personal_final)
        return pages.section(
            title, f"The paper: {claim}", "Personal accuracy in %, last round:", shown, commands=commands
        )


def losses(runs: Sequence[Run]) -> str:
    """Return the last loss of the original task, and by how much it rose above its minimum before."""
    by_method: dict[str, list[tuple[float, float, float]]] = {}
    for run in runs:
        by_round = [loss for loss in run.result["loss"]["by_round"] if loss is not None]
        rises = [rise for rise in loss_increase(by_round) if rise is not None]
        facts = (by_round[-1], sum(rises) / len(rises), float(sum(rise > 0 for rise in rises)))
        by_method.setdefault(label(run.config), []).append(facts)
    rows = [
        [
            name,
            *(pages.mean_and_std([facts[k] for facts in several], digits) for k, digits in ((0, 3), (1, 4), (2, 1))),
        ]
        for name, several in sorted(by_method.items())
    ]
    head = ["method", "last training loss", "mean loss increase", "rounds with an increase"]
    words = (
        "Loss of the original task while training, and its increase: the loss of a round minus the least so far. "
        "The paper (figures 1 and 3): FedL2G's falls without increases, FedDistill's and FedProto's do not."
    )
    return f"{words}\n\n{pages.markdown_table(head, rows)}"


def setting(key: str, otherwise: object = "") -> Callable[[Run], str]:
    return lambda run: str(run.lookup(key) if run.lookup(key) is not None else otherwise)


def group_of(run: Run) -> str:
    group = run.config["models"]["group"]
    text = group if isinstance(group, str) else f"[{','.join(str(member) for member in group)}]"
    return next(name for name, members in GROUPS.items() if members == text)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--jobs", default="2")
    arguments.add_argument("--seeds", default="0,1,2")
    arguments.add_argument("--out", type=Path, default=Path("runs/results-fedl2g"))
    arguments.add_argument(
        "--reuse", type=Path, help="results_heterogeneous.py's folder, for the other methods' runs"
    )
    arguments.add_argument("--root", help="folder with Fashion-MNIST's idx files")
    arguments.add_argument("--page", default="fedl2g", help="name of the page in docs/results")
    arguments.add_argument("--more", nargs="*", default=[], metavar="KEY=VALUE", help="for a trial, e.g. rounds=2")
    given = arguments.parse_args()
    script = Script(given.out, given.seeds, given.jobs, given.reuse, given.more, given.root)
    learned = ["method.space=logit,feature"]
    controls = ["method.guidance=frozen-random,zero"]
    parts = [
        script.comparison("digits", "quickstart", [], [learned, [*learned, *controls]]),
        script.comparison(
            "fashion-mnist", "fashion-mnist-20", FASHION, [learned, [*learned, "method.guidance=frozen-random"]]
        ),
        script.ablation(
            "server-lr",
            "digits: the server's learning rate",
            "table 4 (CIFAR-100, HtFE8): logits 41.7, 41.6, 42.3, 41.6, 41.8 from 0.01 to 1; features 41.1, 42.0, "
            "43.5, 43.8, 41.4 from 1 to 500. The rate is called the method's only hyperparameter.",
            [
                ["method=fedl2g", "method.space=logit", "method.server_lr=0.01,0.1,1.0"],
                ["method=fedl2g", "method.space=feature", "method.server_lr=10.0,100.0,500.0"],
                BOTH,  # at the default rate, with the control
            ],
            setting("method.server_lr", "default"),
            ["default", "0.01", "0.1", "1.0", "10.0", "100.0", "500.0"],
        ),
        script.ablation(
            "clients",
            "digits: more clients, Dirichlet 0.5; of 50 and 100 half are in a round",
            "table 2 (CIFAR-100): 50 clients 38.9 (logits) and 40.5 (features) against 38.8 of the best other; "
            "100 clients 36.7 and 37.9 against 36.1.",
            [[*several, *PARTITION, "clients=50,100", "participation=0.5"] for several in (RIVALS, BOTH)]
            + [[*several, *PARTITION, "clients=20"] for several in (RIVALS, BOTH)],
            setting("clients"),
            ["20", "50", "100"],
        ),
        script.ablation(
            "epochs",
            "digits: more epochs per round, 4 rounds",
            "table 3 (CIFAR-100): hardly changes with 5, 10 and 20 epochs: logits 42.2, 42.0, 42.1, features 43.7, "
            "43.8, 44.3.",
            [
                ["method=local", "rounds=4", "train.epochs=1,5,10"],
                [*BOTH, "rounds=4", "train.epochs=1,5,10"],
            ],
            setting("train.epochs"),
            ["1", "5", "10"],
        ),
        script.ablation(
            "models",
            "digits: degrees of model heterogeneity, features of 64 numbers",
            "table 2 (CIFAR-100; two, three, four, nine models, and ten with transformers): logits 47.3, 44.5, 44.8, "
            "44.1, 41.8, features 47.8, 45.8, 44.7, 45.7, 43.5, against 46.9, 45.6, 43.9, 43.0, 41.0 of "
            "the best other.",
            [
                [*several, f"models.group={','.join(GROUPS.values())}", "models.feature_dim=64"]
                for several in (RIVALS, BOTH)
            ],
            group_of,
            list(GROUPS),
        ),
    ]
    pages.write(given.page, INTRODUCTION, pages.versions(given.out), *parts)


if __name__ == "__main__":
    main()
