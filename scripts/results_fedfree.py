"""Write docs/results/fedfree.md: FedFree compared with other data-free methods, and its ablations on digits.

    .venv/bin/python scripts/results_fedfree.py [--jobs 2] [--out runs/results-fedfree] [--reuse FOLDER]

Finished runs are not repeated, so the script can be interrupted and started again. The runs of the other methods are
those of scripts/results_heterogeneous.py: `--reuse` names their folder, and missing runs are added there.
Fashion-MNIST must be available: Debian's package dataset-fashion-mnist, `--root FOLDER` with its idx files, or the
Hugging Face hub.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pages

BASELINES = "local,lg-fedavg,feddistill,fedproto,fedgh,fml,fedkd,fedtgp,fedgen,fedktl-lite,ccvr,fedtype,pfedafm"
SETTINGS: dict[str, tuple[str, list[str], str]] = {
    "digits": ("quickstart", [], "digits: 20 clients, Dirichlet 0.1, `tiny4`, 10 rounds, batch 10, SGD 0.01"),
    "fashion-mnist": (
        "fashion-mnist-20",
        ["train.batch_size=10", "evaluate.every=5"],
        "Fashion-MNIST: 6,000 training and 2,000 test samples, 20 clients, Dirichlet 0.1, `tiny4`, 30 rounds, "
        "batch 10, SGD 0.01, measured every 5 rounds",
    ),
}
# the formulas of the paper taken literally, as in the preset fedfree-literal: the ablations and controls vary this
LITERAL = ["method.start=random", "method.entropy_range=own", "method.candidate_scope=all_same_type"]
CONTROLS = ("reversed-gain", "random-replacement", "frozen-server", "before-replacement")  # of fedfree_controls.py
# by part of the method: what the paper claims, and the variants that are compared with the published method
ABLATIONS: dict[str, tuple[str, dict[str, list[str]]]] = {
    "critical layers or random ones": (
        "Figure 4a (CIFAR-100, 100 clients): critical layers are clearly better.",
        {"selection: random": ["method.selection=random"]},
    ),
    "pseudo-data or averages": (
        "Figure 4b: sharing through pseudo-data is clearly better than averaging layers of one type. In expectation "
        "it is a moving average with rate 0.02.",
        {"sharing: average": ["method.sharing=average"], "pseudo: expected": ["method.pseudo=expected"]},
    ),
    "how many layers": (
        "Figure A1: k = 2 is best, ahead of 1 and 3.",
        {"k: 1": ["method.k=1"], "k: 3": ["method.k=3"]},
    ),
    "entropies": (
        "Table A3 (CIFAR-100, 100 clients): Shannon 49.20, Tsallis 45.98 (q is not given), collision 44.46.",
        {
            "entropy: tsallis, q 2": ["method.entropy=tsallis"],
            "entropy: tsallis, q 0.5": ["method.entropy=tsallis", "method.tsallis_q=0.5"],
            "entropy: collision": ["method.entropy=collision"],
        },
    ),
    "what the paper does not show": (
        "Controls: the gain with its sign reversed, a random pair, a server that never learns; and choices that the "
        "paper leaves open or contradicts itself on. `fedfree-before-replacement` is the same run, evaluated before "
        "layers are replaced.",
        {
            **{
                f"fedfree-{name}": [f"method=fedfree-{name}", "imports=[scripts/fedfree_controls.py]"]
                for name in CONTROLS
            },
            "remainder: zero": ["method.remainder=zero"],
            "projection: block": ["method.projection=block"],
            "protect_head: true": ["method.protect_head=true"],
            "candidate_scope: updated_only": ["method.candidate_scope=updated_only"],
            "entropy_range: pair": ["method.entropy_range=pair"],
            "start: uploads": ["method.start=uploads"],
        },
    ),
}
CLAIM = (
    "The paper's Table 1 (CIFAR, eight architectures up to ResNet-152, 200 rounds, one dominant class group per "
    "client) has FedFree ahead of FedProto, FedKD, FedGH and FedTGP in every column: 95.81 % against 94.24 % for the "
    "next best with 10 clients on CIFAR-10, 49.20 % against 33.63 % with 100 clients on CIFAR-100. It does not show "
    "local training."
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--jobs", default="2")
    arguments.add_argument("--seeds", default="0,1,2")
    arguments.add_argument("--out", type=Path, default=Path("runs/results-fedfree"))
    arguments.add_argument("--reuse", type=Path, help="folder with the other methods' finished runs")
    arguments.add_argument("--root", help="folder with Fashion-MNIST's idx files")
    arguments.add_argument("--only", choices=SETTINGS, help="one dataset, for a try")
    chosen = arguments.parse_args()
    others = chosen.reuse or chosen.out / "others"
    parts = []
    for name, (preset, overrides, title) in SETTINGS.items():
        if chosen.only not in (None, name):
            continue
        private = [f"data.root={chosen.root}"] if chosen.root and name == "fashion-mnist" else []
        runs = {"seeds": chosen.seeds, "jobs": chosen.jobs, "private": private}
        commands = [
            pages.sweep(preset, [f"method={BASELINES}", *overrides], out=others / name, **runs),
            pages.sweep(preset, ["method=fedfree", *overrides], out=chosen.out / name, **runs),
            pages.sweep(preset, ["method=fedfree", *LITERAL, *overrides], out=chosen.out / f"{name}-literal", **runs),
        ]
        literal = [
            {**run.result, "method": "fedfree, literal"}
            for run in pages.finished_runs([chosen.out / f"{name}-literal"])
        ]
        default = [run.result for run in pages.finished_runs([others / name, chosen.out / name])]
        table = pages.comparison_table([*default, *literal])
        parts.append(pages.section(title, table, commands=commands))
        if name == "digits":
            parts += [ablation(chosen.out, heading, chosen.seeds, chosen.jobs) for heading in ABLATIONS]
    introduction = [
        "# FedFree\n",
        f"Written by `scripts/results_fedfree.py` from its run folders; seeds {chosen.seeds}, mean and standard "
        f"deviation over seeds. {pages.CAPTION}\n",
        CLAIM,
        pages.versions(chosen.out),
    ]
    pages.write("fedfree", *introduction, *parts)


def ablation(out: Path, heading: str, seeds: str, jobs: str) -> str:
    """Compare the literal method with variants of one of its parts, on digits."""
    claim, variants = ABLATIONS[heading]
    folders = {"fedfree, literal": out / "digits-literal"}
    commands = []
    for label, overrides in variants.items():
        folders[label] = out / "ablations" / label.replace(": ", "-").replace(", ", "-").replace(" ", "-")
        replaced = {override.partition("=")[0] for override in overrides}
        literal = [override for override in LITERAL if override.partition("=")[0] not in replaced]
        axes = [*([] if "method" in replaced else ["method=fedfree"]), *overrides, *literal]
        commands.append(pages.sweep("quickstart", axes, seeds=seeds, out=folders[label], jobs=jobs))
    rows = [{**run.result, "method": label} for label, at in folders.items() for run in pages.finished_runs([at])]
    return pages.section(f"Ablation on digits: {heading}", claim, pages.comparison_table(rows), commands=commands)


if __name__ == "__main__":
    main()
