"""Learning rates of the leaderboard: the runs that compare three values on validation data, and the chosen values."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from polyfed.config.loading import override_text
from polyfed.config.sweep import SweepRun
from polyfed.config.tuning import SEED, VALIDATION, best_value, learning_rates
from polyfed.errors import InputError
from polyfed.leaderboard.measure import MEASURES
from polyfed.leaderboard.plan import Entry, Plan
from polyfed.runs.folder import RunFolder

RATES_FILE = Path(__file__).parent / "rates.json"
TUNE = "tune"  # folder of the tuning runs
RATE_KEY = "train.lr="

Rates = Mapping[str, Mapping[str, float]]  # by scenario and name of an entry


def with_rates(plan: Plan, rates: Rates) -> Plan:
    """Return a plan whose entries have the chosen learning rates. Entries without one keep that of the preset."""
    chosen = rates.get(plan.scenario.name, {})
    return dataclasses.replace(
        plan, entries=tuple(_with_rate(entry, chosen.get(entry.name, entry.rate)) for entry in plan.entries)
    )


def tuning_runs(plan: Plan, out: Path) -> list[SweepRun]:
    """Return three runs of every entry, which differ in the learning rate and measure on validation data."""
    return [run for entry in plan.entries for run in _candidates(plan, entry, out).values()]


def choose_rates(plan: Plan, out: Path) -> dict[str, float]:
    """Return the best learning rate of every entry by its finished tuning runs. A rate whose run failed cannot win.

    The common accuracy decides, or the personal accuracy if there is no common test set.
    """
    chosen = {}
    for entry in plan.entries:
        scores = {}
        for rate, run in _candidates(plan, entry, out).items():
            score = _score(run.folder)
            if score is not None:
                scores[rate] = score
        if scores:
            chosen[entry.name] = best_value(scores)
    return chosen


def _candidates(plan: Plan, entry: Entry, out: Path) -> dict[float, SweepRun]:
    runs = {}
    for rate in learning_rates(entry.rate):
        tried = _with_rate(entry, rate, (override_text("data.validation", VALIDATION),))
        runs[rate] = plan.run(tried, SEED, out / TUNE)
    return runs


def _with_rate(entry: Entry, rate: float, more: Sequence[str] = ()) -> Entry:
    """Return the entry with another learning rate. That of the preset needs no override."""
    if rate == entry.rate:
        return dataclasses.replace(entry, overrides=(*entry.overrides, *more))
    others = [text for text in entry.overrides if not text.startswith(RATE_KEY)]
    return dataclasses.replace(entry, overrides=(*others, override_text("train.lr", rate), *more), rate=rate)


def _score(path: Path) -> float | None:
    folder = RunFolder(path)
    result = folder.result() if folder.exists() else None
    if result is None:
        return None
    values = (MEASURES[kind].read(result) for kind in ("global", "personal"))
    return next((value for value in values if value is not None), None)


def read_rates(path: Path = RATES_FILE) -> Rates:
    """Read a file of learning rates. Raise InputError if it is not readable or has another form."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return {name: {entry: float(rate) for entry, rate in rates.items()} for name, rates in raw.items()}
    except OSError as error:
        raise InputError(f"the learning rates {path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no file of learning rates: {type(error).__name__} {error}") from None


def rates_text(rates: Rates) -> str:
    """Return the text of a file of learning rates."""
    return json.dumps({name: dict(chosen) for name, chosen in rates.items()}, indent=1) + "\n"
