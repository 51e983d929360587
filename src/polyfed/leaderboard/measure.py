"""Collect the numbers of the finished runs of a leaderboard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polyfed.comparison import Run
from polyfed.comparison.gain import difference
from polyfed.comparison.measures import ACCURACIES
from polyfed.leaderboard.plan import Entry, Plan
from polyfed.leaderboard.records import Gain, Leaderboard, Measured, Row, ScenarioRecord
from polyfed.leaderboard.scenarios import LOCAL
from polyfed.runs.folder import RunFolder

MEASURES = {one.kind: one for one in ACCURACIES if not one.best}
VERSIONS = ("polyfed", "python", "torch", "platform")


def collect(plans: Sequence[Plan], seeds: Sequence[int], out: Path, command: str) -> Leaderboard:
    """Return the leaderboard of all finished runs. Scenarios without finished runs are left out."""
    versions: dict[str, str] = {}
    records = {}
    for plan in plans:
        finished = {entry: _finished(plan, entry, seeds, out) for entry in plan.entries}
        for run in (run for runs in finished.values() for run in runs[:1] if not versions):
            versions = {name: str(run.result["versions"][name]) for name in VERSIONS}
        record = _record(plan, finished, seeds)
        if record.rows:
            records[record.scenario] = record
    return Leaderboard(records, command, versions)


def _finished(plan: Plan, entry: Entry, seeds: Sequence[int], out: Path) -> list[Run]:
    runs = []
    for seed in seeds:
        folder = RunFolder(plan.run(entry, seed, out).folder)
        result = folder.result() if folder.exists() else None
        if result is not None:
            runs.append(Run(str(folder.path), result, folder.config()))
    return runs


def _record(plan: Plan, finished: dict[Entry, list[Run]], seeds: Sequence[int]) -> ScenarioRecord:
    baselines = {entry.variant.models: entry for entry in plan.entries if entry.method == LOCAL}
    rows = [
        _row(entry, runs, baselines[entry.variant.models], finished[baselines[entry.variant.models]])
        for entry, runs in finished.items()
        if runs
    ]
    missing = {entry.name: len(seeds) - len(runs) for entry, runs in finished.items() if len(runs) < len(seeds)}
    config = plan.runs([0], Path())[0].config
    return ScenarioRecord(plan.scenario.name, tuple(rows), plan.excluded, missing, config.per_round, config.rounds)


def _row(entry: Entry, runs: Sequence[Run], baseline: Entry, baseline_runs: Sequence[Run]) -> Row:
    gains = {}
    for kind, measure in MEASURES.items() if entry.method != LOCAL else ():
        gap = difference(runs, baseline_runs, measure)
        if gap is not None:
            over_seeds = gap.over == "seeds"
            gains[kind] = Gain(gap.mean, gap.low if over_seeds else None, gap.high if over_seeds else None)
    work = entry.training_flops / baseline.training_flops if baseline.training_flops else None
    measured = tuple(map(_measured, runs))
    return Row(entry.method, entry.variant.models, entry.overrides, entry.rate, measured, gains, work)


def _measured(run: Run) -> Measured:
    accuracy = {kind: measure.read(run.result) for kind, measure in MEASURES.items()}
    sent = run.result["bytes"]
    hashed = run.result["state_hash"]
    return Measured(run.seed, hashed, accuracy["global"], accuracy["personal"], sent["up"], sent["down"])
