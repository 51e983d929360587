"""Write docs/results/inco.md: five methods with and without InCo Aggregation, its ablation, and its other rules.

    .venv/bin/python scripts/results_inco.py [--jobs 2] [--out runs/results-inco] [--root FOLDER] [--only methods]

Finished runs are not repeated, so the script can be stopped and started again. It needs Fashion-MNIST: Debian's
package dataset-fashion-mnist, `--root FOLDER` with its idx files, or the Hugging Face hub.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pages

from polyfed.comparison import Run
from polyfed.runs.folder import RunFolder

PRESET = "inco-stage"
SHARED = ["evaluate.every=10"]
# Adam is what the paper trains with; FedNova and SCAFFOLD are defined for SGD and must be told to accept it.
METHODS = {
    "fedavg": "{name: fedavg, weights: uniform}",
    "fedprox": "{name: fedprox, weights: uniform, mu: 0.1}",
    "fednova": "{name: fednova, weights: uniform, allow_step_count: true}",
    "scaffold": "{name: scaffold, weights: uniform, allow_any_optimizer: true}",
    "moon": "{name: moon, weights: uniform}",
}
# Table 2 of the paper: ResNets, stage splitting, Fashion-MNIST, Dirichlet 0.5
PAPER = {
    "fedavg": (87.8, 90.2),
    "fedprox": (86.8, 88.8),
    "fednova": (84.9, 86.6),
    "scaffold": (85.2, 88.3),
    "moon": (87.9, 89.1),
}
ABLATION = {
    "InCo as released": "inco",
    "without normalisation": "{name: inco, normalise: false}",
    "without optimisation": "{name: inco, rule: sum}",
    "without both": "{name: inco, rule: sum, normalise: false}",
    "without InCo": "none",
}
RULES = {
    "released (the released code)": "inco",
    "abs": "{name: inco, rule: abs}",
    "theorem": "{name: inco, rule: theorem}",
    "algorithm1": "{name: inco, rule: algorithm1}",
    "off": "none",
}
CONTROLS = {
    "the stage's own anchor": "inco",
    "its entries in another order": "{name: inco-control, control: permuted}",
    "noise of its length": "{name: inco-control, control: gaussian}",
    "another stage's anchor": "{name: inco-control, control: other_stage}",
    "no mixing, the length of InCo's updates": "{name: inco-length-control}",
    "no mixing, the mean length": "{name: inco-length-control, length: mean}",
    "without InCo": "none",
}
PARTS = {"methods": None, "ablation": ABLATION, "rules": RULES, "controls": CONTROLS}
TITLES = {
    "ablation": (
        "Ablation, FedAvg",
        "The paper's Figure 8 compares InCo with the same without normalisation, without optimisation (theta = 1) and "
        "without both, and with HeteroAvg; it is said to show that InCo is best.",
    ),
    "rules": (
        "The rules, FedAvg",
        "The theorem, the algorithm box and the released code say different things where the two updates point the "
        "same way: leave the deep one alone, take the shallow direction out, add more of it. The paper does not compare "
        "them.",
    ),
    "controls": (
        "Controls, FedAvg",
        "Anchors that mean nothing, with the length of the real one. The paper's Figure 20 compares with Gaussian "
        "noise only, and finds InCo better.",
    ),
}
SETTING = (
    "Fashion-MNIST, 6,000 training and 2,000 test samples, 100 clients, 10 % of them in a round, Dirichlet 0.5, "
    "`tiny-resnets` cut by stages (20 clients each, from the smallest to the largest), 5 local epochs, batch 64, Adam "
    "0.001, uniform weights. Accuracy is on the common test set, mean over clients: all clients of an architecture "
    "hold the same model, so the five architectures have equal weight."
)
CLAIM = (
    "The paper (full-size ResNet-10 to 26, all 60,000 samples, 500 rounds) reports gains of 1.2 to 3.1 points for the "
    "five methods, with deviations of 1 to 4 points over three seeds."
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--jobs", default="2")
    arguments.add_argument("--seeds", default="0,1,2")
    arguments.add_argument("--out", type=Path, default=Path("runs/results-inco"))
    arguments.add_argument("--root", help="folder with Fashion-MNIST's idx files")
    arguments.add_argument("--rounds", help="another number of rounds than the preset's, for a try")
    arguments.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), help="some parts of the page")
    chosen = arguments.parse_args()
    options: dict[str, Any] = {"seeds": chosen.seeds, "jobs": chosen.jobs, "out": chosen.out}
    options["private"] = [f"data.root={chosen.root}"] if chosen.root else []
    shared = [*SHARED, *([f"rounds={chosen.rounds}"] if chosen.rounds else [])]
    commands = {part: _sweep(part, shared, options) for part in chosen.only}
    runs = pages.finished_runs([chosen.out])
    rounds = runs[0].config["rounds"]
    parts = [
        "# InCo Aggregation\n",
        f"Written by `scripts/results_inco.py` from its run folders; seeds {chosen.seeds}, mean and standard deviation "
        f"over seeds, in percent. CPU-sized settings: not comparable with any published number.\n",
        f"{SETTING} {rounds} rounds, measured every 10. *Final* is the last round, *best* the best measured one, chosen "
        "on test data. *Gain* is the mean over seeds of the difference within a seed, with its standard deviation.\n",
        CLAIM + "\n",
        pages.versions(chosen.out),
    ]
    if "methods" in chosen.only:
        tables = [methods_table(runs), groups_table(runs)]
        parts.append(pages.section("Methods with and without InCo", *tables, commands=commands["methods"]))
        parts.append(pages.section("What was measured inside", beta_table(runs), cka_table(runs)))
    for part, (title, claim) in TITLES.items():
        if part in chosen.only:
            table = variants_table(runs, PARTS[part] or {})
            parts.append(pages.section(title, claim, table, commands=commands[part]))
    pages.write("inco", *parts)


def _sweep(part: str, shared: list[str], options: Mapping[str, Any]) -> list[str]:
    """Run the sweeps of a part and return their commands. All parts use FedAvg's runs with and without InCo."""
    avg, others = METHODS["fedavg"], ",".join(text for name, text in METHODS.items() if name != "fedavg")
    plain = pages.sweep(PRESET, [f"method={avg}", "server_filter=none,inco", "evaluate.cka=true", *shared], **options)
    if part == "methods":
        return [plain, pages.sweep(PRESET, [f"method={others}", "server_filter=none,inco", *shared], **options)]
    filters = ",".join(text for text in (PARTS[part] or {}).values() if text not in ("none", "inco"))
    imports = ["imports=[scripts/inco_controls.py]"] if part == "controls" else []
    return [pages.sweep(PRESET, [*imports, f"method={avg}", f"server_filter={filters}", *shared], **options)]


# choosing runs


def chosen_by(runs: Iterable[Run], method: str, wanted: str) -> dict[int, Run]:
    """Return the runs of a method with a filter by seed; the filter is given as on the command line."""
    fields = _fields(wanted)
    return {run.result["seed"]: run for run in runs if _matches(run.config, method, fields)}


def _fields(text: str) -> dict[str, Any]:
    from polyfed.config import parse
    from polyfed.runs.config_text import read_yaml

    value = read_yaml(text)
    filled = parse({"method": "fedavg", "server_filter": value}).server_filter
    return {"name": "none"} if filled == "none" or isinstance(filled, str) else dict(filled)


def _matches(config: Mapping[str, Any], method: str, fields: Mapping[str, Any]) -> bool:
    own = config["server_filter"]
    own = {"name": own} if isinstance(own, str) else own
    return bool(config["method"]["name"] == method and own == fields)


# numbers


def accuracy(run: Run, which: str = "final") -> float:
    return 100 * float(run.result["accuracy"]["global"][which])


def gain(with_it: Mapping[int, Run], without: Mapping[int, Run], which: str = "final") -> str:
    both = sorted(with_it.keys() & without.keys())
    return pages.mean_and_std([accuracy(with_it[k], which) - accuracy(without[k], which) for k in both], sign=True)


# tables


def methods_table(runs: list[Run]) -> str:
    rows = []
    for method, (paper_without, paper_with) in PAPER.items():
        without, with_it = (chosen_by(runs, method, which) for which in ("none", "inco"))
        rows.append(
            [
                f"`{method}`",
                pages.mean_and_std([accuracy(run) for run in without.values()]),
                pages.mean_and_std([accuracy(run) for run in with_it.values()]),
                gain(with_it, without),
                gain(with_it, without, "best"),
                f"{paper_without} to {paper_with} ({paper_with - paper_without:+.1f})",
            ]
        )
    head = ["method", "without InCo, final", "with InCo, final", "gain, final", "gain, best", "the paper"]
    return pages.markdown_table(head, rows)


def groups_table(runs: list[Run]) -> str:
    """Return the final accuracy of each architecture: clients 0 to 19 have the smallest model, 80 to 99 the largest."""
    rows = []
    for label, which in {"HeteroAvg": "none", "InCoAvg": "inco"}.items():
        chosen = chosen_by(runs, "fedavg", which).values()
        by_client = [run.result["accuracy"]["global"]["by_client"] for run in chosen]
        rows.append(
            [label, *(pages.mean_and_std([100 * values[at] for values in by_client]) for at in range(0, 100, 20))]
        )
    head = ["FedAvg, final, by architecture", *(f"ResNet-{depth}" for depth in (10, 14, 18, 22, 26))]
    return pages.markdown_table(head, rows)


def events_of(run: Run, kind: str) -> list[dict[str, Any]]:
    return [event for event in RunFolder(Path(run.where)).events() if event.get("kind") == kind]


def beta_table(runs: list[Run]) -> str:
    """Return how often shallow and deep updates point in the same direction, by stage."""
    rows = []
    for method in METHODS:
        shares: dict[str, list[float]] = {}
        thetas: list[float] = []
        whole: list[bool] = []  # a layer's beta is the sum of its kernels'
        for run in chosen_by(runs, method, "inco").values():
            for event in events_of(run, "inco"):
                thetas += event["theta"]
                whole += [beta > 0 for beta in event["beta"]]
                for layer, positive in zip(event["layers"], event["positive"], strict=True):
                    shares.setdefault(layer.split(".stages.")[1][0], []).append(100 * positive)
        rows.append(
            [
                f"`{method}`",
                *(f"{statistics.fmean(shares[stage]):.1f}" if stage in shares else "-" for stage in "0123"),
                f"{100 * statistics.fmean(whole):.1f}" if whole else "-",
                f"{statistics.fmean(thetas):.3f}" if thetas else "-",
            ]
        )
    words = (
        "Share of kernels with beta > 0, in percent, by stage, over layers, rounds and seeds; the same of whole layers; "
        "and the mean coefficient theta. The paper's Table 4 has 83.8 and 74.4 % for two layers of InCoAvg.\n\n"
    )
    head = ["with InCo", *(f"stage {k}" for k in (1, 2, 3, 4)), "whole layers", "theta"]
    return words + pages.markdown_table(head, rows)


def cka_table(runs: list[Run]) -> str:
    """Return the similarity (CKA) of the models that the participants of the last round trained."""
    rows, layers = [], []
    for label, which in {"HeteroAvg": "none", "InCoAvg": "inco"}.items():
        last = [events_of(run, "cka")[-1] for run in chosen_by(runs, "fedavg", which).values()]
        layers = last[0]["layers"]
        rows.append(
            [label, *(pages.mean_and_std([event["mean"][at] for event in last]) for at in range(len(layers)))]
        )
    words = (
        "Linear CKA between the models that the participants of the last round trained, mean over pairs (0 to 1). The "
        "paper says that it falls with depth, and that InCo raises it in the deep stages.\n\n"
    )
    return words + pages.markdown_table(["CKA", *layers], rows)


def variants_table(runs: list[Run], variants: Mapping[str, str]) -> str:
    without = chosen_by(runs, "fedavg", "none")
    rows = []
    for label, text in variants.items():
        chosen = chosen_by(runs, "fedavg", text)
        finals, bests = ([accuracy(run, which) for run in chosen.values()] for which in ("final", "best"))
        own = "" if text == "none" else gain(chosen, without)
        rows.append([label, pages.mean_and_std(finals), pages.mean_and_std(bests), own])
    return pages.markdown_table(["variant", "final", "best", "gain, final"], rows)


if __name__ == "__main__":
    main()
