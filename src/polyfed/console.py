"""Text for people: consoles, messages, and numbers with their units."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_WITHOUT_TERMINAL = 160  # columns, so that a table in a file or a pipe is not folded


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


def make_console(*, stderr: bool = False) -> Console:
    """Return a rich console on stdout or stderr."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else WIDTH_WITHOUT_TERMINAL, highlight=False)


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
