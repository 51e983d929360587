"""Read a comparison with a baseline for the user: one sentence on the method that gains most."""

from __future__ import annotations

from polyfed.comparison.gain import Difference
from polyfed.comparison.table import Comparison, Row
from polyfed.runs.config_text import UNSET

GLOBAL, PERSONAL = "global_final", "personal_final"
WHERE = {GLOBAL: "on the common test set", PERSONAL: "on the clients' own data"}


def conclusion(compared: Comparison) -> str | None:
    """Return a sentence on the row with the largest gain, or None if there is no baseline.

    The gain is that on the common test set, or on the clients' own data if there is no common test set.
    """
    if compared.baseline is None:
        return None
    for measure in (GLOBAL, PERSONAL):
        gains = [(row, gain) for row in compared.rows if (gain := row.differences.get(measure)) is not None]
        if gains:
            row, gain = max(gains, key=lambda pair: pair[1].mean)
            reached = row.values[measure]
            mean = f"{reached.mean:.1f} % " if reached is not None else ""
            start = f"{_name(row)} reaches {mean}{WHERE[measure]}, {_gain(gain)} {compared.baseline}"
            price = _personal(row, compared.baseline) if measure == GLOBAL else ""
            return f"{start}{_interval(gain)}{price}.{_not_above(compared, measure)}"
    return None


def _name(row: Row) -> str:
    """Return the method of a row, with its other settings in parentheses."""
    first, *others = row.group.items()
    settings = ", ".join(f"{key} {value}" for key, value in others if value not in (UNSET, "none"))
    return f"{first[1]} ({settings})" if settings else first[1]


def _gain(gain: Difference) -> str:
    return f"{abs(gain.mean):.1f} points {'above' if gain.mean >= 0 else 'below'}"


def _interval(gain: Difference) -> str:
    if gain.low is None:
        return ""
    return f" (95 % interval over {gain.over} {gain.low:+.1f} to {gain.high:+.1f})"


def _personal(row: Row, baseline: str) -> str:
    personal = row.differences.get(PERSONAL)
    return "" if personal is None else f"; {WHERE[PERSONAL]} it is {_gain(personal)} {baseline}"


def _not_above(compared: Comparison, measure: str) -> str:
    """Name the methods below the baseline, and those whose interval includes zero.

    A method without an interval is below the baseline if its mean is.
    """
    gains = [(row, gain) for row in compared.rows if (gain := row.differences.get(measure)) is not None]
    clear = [_name(row) for row, gain in gains if (gain.mean if gain.high is None else gain.high) < 0]
    unclear = [
        _name(row)
        for row, gain in gains
        if gain.low is not None and gain.high is not None and gain.low <= 0 <= gain.high
    ]
    sentences = f" Below {compared.baseline} {WHERE[measure]}: {', '.join(clear)}." if clear else ""
    if unclear:
        sentences += f" No clear difference from {compared.baseline} (the interval includes 0): {', '.join(unclear)}."
    return sentences
