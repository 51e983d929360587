"""What commands print: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 160  # columns when nobody's window limits them: a table in a file or a pipe is not folded


def one_sentence(text: object) -> str:
    """On one line, without control characters that a terminal would obey."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())


def say(text: object) -> None:
    """A sentence to stderr."""
    line = f"{one_sentence(text)}\n"
    try:
        sys.stderr.write(line)
        sys.stderr.flush()
    except RuntimeError:  # said by a signal handler in the middle of another sentence, which a buffer refuses
        os.write(sys.stderr.fileno(), line.encode())


def put(text: str) -> None:
    """A result to stdout."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()


def put_json(value: Any) -> None:
    put(json.dumps(value, indent=1))


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else WIDE, highlight=False)


def put_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[int] = ()) -> None:
    """A table to stdout; `right` are the columns of numbers. Texts are shown as they are, never as markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    numbers = set(right)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for at, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if at in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_sentence(cell)) for cell in row))
    console().print(table)


def size(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


MOST_ROUNDS = 10  # rows of a run's table


def put_result(result: Mapping[str, Any]) -> None:
    """One finished run: some of its rounds with the best marked, and its headline."""
    _put_rounds(result)

    def accuracy(kind: str, which: str) -> str:
        measured = result["accuracy"][kind]
        return percent(None if measured is None else measured[which])

    put_table(
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


def _put_rounds(result: Mapping[str, Any]) -> None:
    """The first, last, best and some other rounds; * is the best of a column."""
    accuracy = result["accuracy"]
    kinds = [kind for kind in ("personal", "global") if accuracy[kind] is not None]
    count = len(result["loss"]["by_round"])
    best = {kind: accuracy[kind]["best_round"] for kind in kinds}
    step = max(1, -(-count // MOST_ROUNDS))
    shown = sorted({1, count, *best.values(), *range(step, count + 1, step)})

    def marked(kind: str, number: int) -> str:
        value = accuracy[kind]["by_round"][number - 1]
        return f"* {percent(value)}" if best[kind] == number else percent(value)

    put_table(
        ["round", *kinds, "loss", "up", "down", "seconds"],
        [
            [
                number,
                *(marked(kind, number) for kind in kinds),
                "-" if (loss := result["loss"]["by_round"][number - 1]) is None else f"{loss:.4f}",
                *(size(result["bytes"][f"{way}_by_round"][number - 1]) for way in ("up", "down")),
                f"{result['seconds']['by_round'][number - 1]:.2f}",
            ]
            for number in shown
        ],
        right=range(6),
    )
