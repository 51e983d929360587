"""Format text from run folders, which other people may have written, for display."""

from __future__ import annotations


def clean(text: object, limit: int = 120) -> str:
    """Format text from a run folder as one printable line of limited length."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
