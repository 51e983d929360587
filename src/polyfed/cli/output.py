"""Output of the commands: results on stdout, messages on stderr, and numbers formatted for people."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_WITHOUT_TERMINAL = 160  # columns, so that a table in a file or a pipe is not folded
MAX_ROUNDS_SHOWN = 10  # in the table of a run


def single_line(text: object) -> str:
    """Return a text on one line, without control characters that a terminal would execute."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())


def print_message(text: object) -> None:
    """Print a message to stderr, on one line."""
    line = f"{single_line(text)}\n"
    try:
        sys.stderr.write(line)
        sys.stderr.flush()
    except RuntimeError:  # a signal handler interrupted another write to the buffer, which is not reentrant
        os.write(sys.stderr.fileno(), line.encode())


def print_text(text: str) -> None:
    """Print a text to stdout."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """Print a value to stdout as indented JSON."""
    print_text(json.dumps(value, indent=1))


def make_console(*, stderr: bool = False) -> Console:
    """Return a rich console on stdout or stderr."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else WIDTH_WITHOUT_TERMINAL, highlight=False)


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


def format_bytes(count: float) -> str:
    """Format a number of bytes, such as '1.5 MiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def format_percent(value: float | None) -> str:
    """Format a fraction, such as '82.50 %', or '-' if there is none."""
    return "-" if value is None else f"{100 * value:.2f} %"


def format_duration(seconds: float) -> str:
    """Format seconds, such as '42 s' or '3 min 05 s'."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


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
