"""Write the table of docs/published.md: every preset of a published table, and how much work it is.

    .venv/bin/python scripts/published_table.py [--tflops 30]

It needs none of the data, and takes about two minutes on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from polyfed.cli.expected_traffic import estimate_traffic
from polyfed.cli.list_command import presets
from polyfed.cli.output import format_bytes
from polyfed.cli.work_output import format_count, format_flops, format_hours
from polyfed.config import load_config
from polyfed.federation.data_stand_in import federation_without_data
from polyfed.federation.workload import estimate_workload

PAGE = Path(__file__).parent.parent / "docs" / "published.md"
BEGIN, END = "<!-- table: written by scripts/published_table.py -->", "<!-- end of table -->"


def row(name: str, title: str, tflops: float) -> str:
    """Return the row of one preset."""
    config = load_config(name)
    federation = federation_without_data(config)
    profiles = federation.profiles()
    work = estimate_workload(federation, profiles)
    labels = federation.dataset.train.labels.numpy()
    classes = [len(set(labels[part].tolist())) for part in federation.partition.train]
    traffic = estimate_traffic(federation.method, profiles, classes, config.per_round)
    sent = format_bytes(sum(estimate.total.size for estimate in traffic.values()) * config.rounds)
    if any(estimate.total.unknown_fields for estimate in traffic.values()):
        sent = "not known" if sent == "0 B" else f"{sent} and more"
    cells = [
        f"`{name}`",
        title,
        format_count(work.steps),
        format_flops(work.flops),
        format_hours(work.computing_hours(tflops)),
        format_hours(work.starting_hours()),
        sent,
        format_bytes(work.state_bytes),
    ]
    return f"| {' | '.join(cells)} |"


def table(tflops: float) -> str:
    """Return the table of all presets of published tables."""
    heads = [
        "preset",
        "paper, table, setting",
        "steps",
        "FLOPs",
        f"at {tflops:g} TFLOPS",
        "starting operations",
        "traffic",
        "state",
    ]
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * (len(heads) - 2)]
    lines += [
        row(entry["name"], entry["title"], tflops)
        for entry in presets()
        if "/" in entry["name"] and "leaderboard/" not in entry["name"]
    ]
    return "\n".join(lines)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tflops", type=float, default=30.0, help="TFLOPS that the device reaches in training")
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(arguments.parse_args().tflops)}\n{END}{after}")


if __name__ == "__main__":
    main()
