"""Evaluate the claims of a paper by paired differences over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from polyfed.comparison import Difference
from polyfed.comparison.gain import paired_difference
from polyfed.papers.paper_file import Claim, Paper, PaperMeasure, Scale
from polyfed.papers.results import CellRuns, values_of

Verdict = Literal["shown", "not shown", "opposite", "not run"]


@dataclass(frozen=True)
class Comparison:
    """The claim in one setting, against one other row. `difference` is positive if the claimed row is better."""

    setting: str
    than: str
    difference: Difference | None  # None if the runs have no seed in common
    verdict: Verdict


@dataclass(frozen=True)
class ClaimResult:
    """A claim with all of its comparisons."""

    claim: Claim
    comparisons: tuple[Comparison, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict on the whole claim.

        `shown` if all comparisons show it, `opposite` if one shows the opposite, `not run` if none was run, and
        otherwise `not shown`.
        """
        verdicts = {one.verdict for one in self.comparisons}
        if verdicts == {"shown"}:
            return "shown"
        if "opposite" in verdicts:
            return "opposite"
        return "not run" if verdicts <= {"not run"} else "not shown"

    def count(self, verdict: Verdict) -> int:
        """Return the number of comparisons with a verdict."""
        return sum(one.verdict == verdict for one in self.comparisons)


def evaluate_claims(paper: Paper, scale: Scale, tables: Sequence[str], runs: CellRuns) -> list[ClaimResult]:
    """Evaluate the claims about some tables."""
    return [evaluate_claim(paper, scale, claim, runs) for claim in paper.claims if claim.table in tables]


def evaluate_claim(paper: Paper, scale: Scale, claim: Claim, runs: CellRuns) -> ClaimResult:
    """Compare the claimed row with each of the others, in each setting that exists at the scale."""
    table = paper.tables[claim.table]
    measure = claim.measure or table.measure
    comparisons = []
    for setting in paper.settings_of(claim.table, scale):
        rows = paper.rows_of(claim.table, setting, scale)
        if claim.better not in rows or (claim.settings is not None and setting not in claim.settings):
            continue
        own = values_of(paper, measure, (setting, claim.better), runs)
        for than in claim.than:
            if than in rows:
                gap = gain(measure, paired_difference(own, values_of(paper, measure, (setting, than), runs)))
                comparisons.append(Comparison(setting, than, gap, judge(gap, claim.by)))
    return ClaimResult(claim, tuple(comparisons))


def gain(measure: PaperMeasure, gap: Difference | None) -> Difference | None:
    """Return a difference with its sign reversed if less is better, so that a positive one is a gain."""
    if gap is None or measure.of != "traffic":
        return gap
    low, high = (None if end is None else -end for end in (gap.high, gap.low))
    return Difference(-gap.mean, low, high, gap.n, gap.over)


def judge(gap: Difference | None, by: float) -> Verdict:
    """Return what the 95 % interval of a paired difference says about a claim of at least `by`.

    `shown` if the interval is above `by`, `opposite` if it is below, otherwise `not shown`. One seed has no interval.
    """
    if gap is None:
        return "not run"
    if gap.low is None or gap.high is None:
        return "not shown"
    return "shown" if gap.low > by else "opposite" if gap.high < by else "not shown"
