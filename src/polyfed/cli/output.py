"""Output of the commands: results on stdout, messages on stderr, and numbers formatted for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from polyfed.console import format_bytes, format_duration, format_percent, make_console, print_message, single_line

__all__ = [
    "format_bytes",
    "format_duration",
    "format_percent",
    "make_console",
    "print_json",
    "print_message",
    "print_result",
    "print_table",
    "print_text",
    "single_line",
]

MAX_ROUNDS_SHOWN = 10  # in the table of a run


def print_text(text: str) -> None:
    """Print a text to stdout."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """Print a value to stdout as indented JSON."""
    print_text(json.dumps(value, indent=1))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[int] = ()) -> None:
    """Print a table to stdout. `right` lists the right-aligned columns. Cells are never interpreted as markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    right_aligned = set(right)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if column in right_aligned else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(single_line(cell)) for cell in row))
    make_console().print(table)


def print_result(result: Mapping[str, Any]) -> None:
    """Print the result of a run: a table of rounds with the best ones marked, and a summary."""
    _print_rounds(result)

    def accuracy(kind: str, which: str) -> str:
        measured = result["accuracy"][kind]
        return format_percent(None if measured is None else measured[which])

    print_table(
        [
            "method",
            "data",
            "personal final",
            "personal best",
            "global final",
            "global best",
            "MiB up",
            "MiB down",
            "seconds",
        ],
        [
            [
                result["method"],
                result.get("data", {}).get("dataset", "-"),
                *(accuracy(kind, which) for kind in ("personal", "global") for which in ("final", "best")),
                f"{result['bytes']['up'] / 2**20:.3f}",
                f"{result['bytes']['down'] / 2**20:.3f}",
                f"{result['seconds']['total']:.1f}",
            ]
        ],
        right=range(2, 9),
    )


def _print_rounds(result: Mapping[str, Any]) -> None:
    """Print the first, last and best rounds and some between them; * marks the best value of a column."""
    accuracy = result["accuracy"]
    kinds = [kind for kind in ("personal", "global") if accuracy[kind] is not None]
    count = len(result["loss"]["by_round"])
    best = {kind: accuracy[kind]["best_round"] for kind in kinds}
    step = max(1, -(-count // MAX_ROUNDS_SHOWN))
    shown = sorted({1, count, *best.values(), *range(step, count + 1, step)})

    def marked(kind: str, number: int) -> str:
        value = accuracy[kind]["by_round"][number - 1]
        return f"* {format_percent(value)}" if best[kind] == number else format_percent(value)

    print_table(
        ["round", *kinds, "loss", "up", "down", "seconds"],
        [
            [
                number,
                *(marked(kind, number) for kind in kinds),
                "-" if (loss := result["loss"]["by_round"][number - 1]) is None else f"{loss:.4f}",
                *(format_bytes(result["bytes"][f"{way}_by_round"][number - 1]) for way in ("up", "down")),
                f"{result['seconds']['by_round'][number - 1]:.2f}",
            ]
            for number in shown
        ],
        right=range(6),
    )
