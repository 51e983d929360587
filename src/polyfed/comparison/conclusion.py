"""Read a comparison with a baseline for the user: one sentence on the method that gains most."""

from __future__ import annotations

from polyfed.comparison.table import Comparison, Difference, Row


def conclusion(compared: Comparison) -> str | None:
    """Return a sentence on the row with the largest gain on the common test set, or None if none can be stated."""
    gains = [(row, gain) for row in compared.rows if (gain := row.differences.get("global_final")) is not None]
    if compared.baseline is None or not gains:
        return None
    row, gain = max(gains, key=lambda pair: pair[1].mean)
    name, reached = " ".join(row.group.values()), row.values["global_final"]
    if reached is None:
        return None
    start = f"{name} reaches {reached.mean:.1f} % on the common test set, {_gain(gain)} {compared.baseline}"
    return f"{start}{_personal(row, compared.baseline)}.{_losers(compared)}"


def _gain(gain: Difference) -> str:
    words = f"{abs(gain.mean):.1f} points {'above' if gain.mean >= 0 else 'below'}"
    return words if gain.low is None else f"{words} (95 % interval {gain.low:+.1f} to {gain.high:+.1f})"


def _personal(row: Row, baseline: str) -> str:
    personal = row.differences.get("personal_final")
    if personal is None:
        return ""
    side = "above" if personal.mean >= 0 else "below"
    return f"; on the clients' own data it is {abs(personal.mean):.1f} points {side} {baseline}"


def _losers(compared: Comparison) -> str:
    """Name the methods whose gain on the common test set is negative."""
    losers = [
        " ".join(row.group.values())
        for row in compared.rows
        if (gain := row.differences.get("global_final")) is not None and gain.mean < 0
    ]
    return f" Below {compared.baseline} on the common test set: {', '.join(losers)}." if losers else ""
