"""Write docs/results/fedvtc.md: FedVTC compared with the methods of its paper, the gain of fine-tuning, and ablations.

    .venv/bin/python scripts/results_fedvtc.py [--jobs 2] [--out runs/results-fedvtc] [--root FOLDER] [--only digits]

Finished runs are not repeated, so the script can be interrupted and started again. Fashion-MNIST must be available:
Debian's package dataset-fashion-mnist, `--root FOLDER` with its idx files, or the Hugging Face hub.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pages

from polyfed.comparison import Run

BASELINES = "local,fedproto,fedtgp,fedgen,ccvr,fedtype,pfedafm"
FEWER = "local,fedproto"  # for settings with long runs
EXTRA = 5  # additional rounds of the other methods, instead of five passes of fine-tuning, as in the paper
MIB = 1 << 20
# name: preset, Dirichlet, rounds, title, claim of the paper
SETTINGS: dict[str, tuple[str, str, int, str, str]] = {
    "digits": (
        "fedvtc-digits",
        "1.0",
        20,
        "digits, Dirichlet 1.0",
        "MNIST, Dirichlet 1.0: FedProto 86.1, FedTGP 86.8, FedGen 81.9, CCVR 86.2, FedType 86.7, pFedAFM 87.2, FedVTC "
        "90.1 (before fine-tuning 86.8).",
    ),
    "digits-0.1": (
        "fedvtc-digits",
        "0.1",
        20,
        "digits, Dirichlet 0.1",
        "MNIST, Dirichlet 0.1: FedProto 83.4, FedTGP 85.4, FedGen 81.1, CCVR 85.5, FedType 83.9, pFedAFM 85.6, FedVTC "
        "88.7 (before fine-tuning 84.9).",
    ),
    "fashion-mnist": (
        "fedvtc-fashion-mnist",
        "1.0",
        20,
        "Fashion-MNIST, 2,000 training and 1,000 test samples, Dirichlet 1.0",
        "does not use Fashion-MNIST. CIFAR-10, Dirichlet 1.0: FedProto 41.1, FedTGP 42.1, FedGen 39.7, CCVR 41.0, "
        "FedType 40.2, pFedAFM 40.5, FedVTC 51.7 (before fine-tuning 41.6).",
    ),
}
# the ablations on digits: options that differ from the preset
VARIANTS = [
    ["method.matching=0.0,0.01,1.0"],
    ["method.samples_per_class=20,600"],
]
PLAIN = "fedvtc"
ABLATIONS: list[tuple[str, str, list[str]]] = [
    (
        "Loss of the decoder: L_e against L_tc",
        "table 4, MNIST: L_tc 88.7 and 90.1, L_e 87.2 and 89.9 (Dirichlet 0.1 and 1.0); CIFAR-10: 46.9 and 51.7 "
        "against 39.7 and 45.4.",
        ["matching=0.0", PLAIN],
    ),
    (
        "Decoders averaged once against every round",
        "table 3, MNIST: once 88.7 and 90.1, regular 89.7 and 92.3, for 8 times the traffic.",
        [PLAIN, "vtc=regular"],
    ),
    (
        "Synthetic samples per class",
        "figure 8a, MNIST: with too few samples fine-tuning is weak, and too many may degrade it.",
        ["samples_per_class=20", PLAIN, "samples_per_class=600"],
    ),
    (
        "lambda, the weight of distribution matching",
        "figure 8b: 0.1 is best.",
        ["matching=0.0", "matching=0.01", PLAIN, "matching=1.0"],
    ),
]
CHANGING = {"matching": 0.1, "vtc": "once", "samples_per_class": 200}  # as in the presets
INTRODUCTION = f"""# FedVTC: variational transposed convolution

Written by `scripts/results_fedvtc.py` from its run folders; mean and sample standard deviation over seeds. The measure
of the paper is *generalisation accuracy*: the mean over clients of their accuracy on the common test set (*global*).
{pages.CAPTION}

Four small architectures (`tiny4`), full participation, two local epochs, batch 32, Adam: 5 clients and a rate of 0.003 on
digits, 10 clients and 0.002 on Fashion-MNIST. All methods use the same feature maps, from which the decoder starts
(16x2x2 for digits, 20x7x7 for Fashion-MNIST). FedVTC has the options of its presets: 200 synthetic samples per class, 5
passes over them. The other methods train {EXTRA} more rounds instead, with their default options.
"""


def variant(config: Mapping[str, Any]) -> str:
    """Return the options of FedVTC that differ from the preset, or the name of another method."""
    method = config["method"]
    if method["name"] != PLAIN:
        return str(method["name"])
    changed = {key: method.get(key, usual) for key, usual in CHANGING.items()}
    named = [f"{key}={value}" for key, value in sorted(changed.items()) if value != CHANGING[key]]
    return ", ".join(named) or PLAIN


@dataclass(frozen=True)
class Script:
    """The output folder and settings of all runs."""

    out: Path
    seeds: str
    jobs: str
    more: Sequence[str]  # overrides of this call, for a trial on few rounds
    root: str | None

    def sweep(self, name: str, *axes: str) -> str:
        preset, alpha, *_ = SETTINGS[name]
        private = [f"data.root={self.root}"] if self.root and "fashion" in preset else []
        replaced = {override.partition("=")[0] for override in self.more}
        usual = [axis for axis in (f"data.partition.alpha={alpha}", *axes) if axis.partition("=")[0] not in replaced]
        shared = [*usual, *self.more]
        return pages.sweep(preset, shared, seeds=self.seeds, out=self.out / name, jobs=self.jobs, private=private)

    def comparison(self, name: str) -> str:
        """Return a table of all methods, and one of FedVTC before and after fine-tuning."""
        _, _, rounds, title, claim = SETTINGS[name]
        commands = [
            self.sweep(name, f"rounds={rounds}", "method.vtc=once,regular"),
            self.sweep(name, f"rounds={rounds + EXTRA}", f"method={FEWER if 'fashion' in name else BASELINES}"),
        ]
        runs = pages.finished_runs([self.out / name])
        shown = [run for run in runs if run.config["method"]["name"] != PLAIN or variant(run.config) in TUNED]
        return pages.section(title, f"The paper, {claim}", results(shown), tuned(shown), commands=commands)

    def ablations(self) -> list[str]:
        """Return the variants of FedVTC on digits, each with the claim of the paper."""
        rounds = SETTINGS["digits"][2]
        commands = [self.sweep("digits", f"rounds={rounds}", *axes) for axes in VARIANTS]
        runs = [run for run in pages.finished_runs([self.out / "digits"]) if run.config["method"]["name"] == PLAIN]
        first = pages.section("Ablations, digits with Dirichlet 1.0", commands=commands)
        return [first] + [
            f"### {title}\n\nThe paper, {claim}\n\n{tuned(runs, members)}" for title, claim, members in ABLATIONS
        ]


TUNED = [PLAIN, "vtc=regular"]


def results(runs: Sequence[Run]) -> str:
    """Return the accuracy, traffic and time of every method. Some also predict with their heads."""
    columns: list[tuple[str, Callable[[Mapping[str, Any]], float | None]]] = [
        ("global, %", lambda result: 100 * result["accuracy"]["global"]["final"]),
        ("global by head, %", lambda result: by("head", result)),
        ("personal, %", lambda result: 100 * result["accuracy"]["personal"]["final"]),
        ("MiB up", lambda result: result["bytes"]["up"] / MIB),
        ("MiB down", lambda result: result["bytes"]["down"] / MIB),
        ("seconds", lambda result: result["seconds"]["total"]),
    ]
    groups = grouped(runs)
    rows = [
        [
            name,
            *(
                pages.mean_and_std([v for r in several if (v := read(r.result)) is not None], 2)
                for _, read in columns
            ),
        ]
        for name, several in sorted(groups.items())
    ]
    return pages.markdown_table(["method", *(title for title, _ in columns)], rows)


def tuned(runs: Sequence[Run], members: Sequence[str] = tuple(TUNED)) -> str:
    """Return the global accuracy before and after fine-tuning, the gain by seed, and the traffic."""
    groups = grouped(runs)
    rows = []
    for name in members:
        several = groups.get(name, [])
        after = [100 * run.result["accuracy"]["global"]["final"] for run in several]
        before = [by("untuned", run.result) or 0.0 for run in several]
        gain = [b - a for a, b in zip(before, after, strict=True)]
        personal = [100 * run.result["accuracy"]["personal"]["final"] for run in several]
        traffic = [(run.result["bytes"]["up"] + run.result["bytes"]["down"]) / MIB for run in several]
        cells = [
            pages.mean_and_std(before),
            pages.mean_and_std(after),
            pages.mean_and_std(gain, sign=True),
            pages.mean_and_std(personal),
        ]
        rows.append([name, *cells, pages.mean_and_std(traffic)])
    head = ["FedVTC", "global before, %", "global after, %", "gain", "personal after, %", "MiB in all"]
    return pages.markdown_table(head, rows)


def by(way: str, result: Mapping[str, Any]) -> float | None:
    """Return the global accuracy of another way to predict, or None if the method does not have it."""
    also = result["accuracy"]["global"].get("also", {}).get(way)
    return None if also is None else 100 * float(also["final"])


def grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    by_variant: dict[str, list[Run]] = {}
    for run in runs:
        by_variant.setdefault(variant(run.config), []).append(run)
    return by_variant


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--jobs", default="2")
    arguments.add_argument("--seeds", default="0,1,2")
    arguments.add_argument("--out", type=Path, default=Path("runs/results-fedvtc"))
    arguments.add_argument("--root", help="folder with Fashion-MNIST's idx files")
    arguments.add_argument("--page", default="fedvtc", help="name of the page in docs/results")
    arguments.add_argument("--only", choices=SETTINGS, nargs="+", default=list(SETTINGS), help="some settings only")
    arguments.add_argument("--more", nargs="*", default=[], metavar="KEY=VALUE", help="for a trial, e.g. rounds=1")
    given = arguments.parse_args()
    script = Script(given.out, given.seeds, given.jobs, given.more, given.root)
    parts = [script.comparison(name) for name in given.only]
    if "digits" in given.only:
        parts += script.ablations()
    pages.write(given.page, INTRODUCTION, pages.versions(given.out), *parts)


if __name__ == "__main__":
    main()
