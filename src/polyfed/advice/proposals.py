"""`polyfed.advise`: which methods fit, what they cost, what gain to expect, and the config to start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfed.advice.ranking import Proposal, rank
from polyfed.advice.situation import Situation, situation_of
from polyfed.advice.start_config import config_text, start_config
from polyfed.config import load_config
from polyfed.config.early_checks import check_names
from polyfed.leaderboard.records import DATA_FILE, Gain, read_leaderboard


@dataclass(frozen=True)
class Advice:
    """Ranked methods, reasons against the others, and the config to start from (None without a measured method)."""

    situation: Situation
    scenario: str | None  # of the leaderboard, in which gains and bytes were measured; None: not measured
    methods: tuple[Proposal, ...]
    excluded: Mapping[str, str]
    config: Mapping[str, Any] | None = field(default=None)

    @property
    def config_text(self) -> str:
        """The config as YAML. It is empty if there is none."""
        if self.config is None:
            return ""
        return config_text(self.config, f"Proposed by polyfed advise: {self.methods[0].method}.")

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "scenario": self.scenario,
            "methods": [
                {
                    "method": one.method,
                    "gain_common": _gain(one.common),
                    "gain_personal": _gain(one.personal),
                    "mib_up_per_client_and_round": one.mib_up,
                    "mib_down_per_client_and_round": one.mib_down,
                    "uploads": list(one.uploads),
                }
                for one in self.methods
            ],
            "excluded": dict(self.excluded),
            "config": self.config,
        }


def advise(
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    leaderboard: Path = DATA_FILE,
    **wishes: Any,
) -> Advice:
    """Rank methods for a config or a described situation.

    Args:
        config: Name of a preset or path of a config file. None: the situation is described by `wishes`.
        overrides: Overrides of the config, such as `"clients=10"`.
        leaderboard: Data file of `polyfed leaderboard`. Default: the one of the package.
        wishes: `models` (same, sizes, different), `data` (images, tables, series, tokens), `care` (common, personal,
            both), `compute` (low, high), `skew` (strong, mild), `may_send` and `never` (names of kinds of uploads),
            `mib_per_round`, `clients` and `differential_privacy`. They replace what the config says.

    Examples:
        >>> advice = polyfed.advise(models="different", never=("weights",), care="common")
        >>> "weights" in advice.methods[0].uploads
        False
    """
    given = {name: value for name, value in wishes.items() if value is not None}
    if config is None:
        situation = Situation(**given)
    else:
        parsed = load_config(config, list(overrides))
        check_names(parsed)
        situation = situation_of(parsed, given)
    ranking = rank(situation, read_leaderboard(leaderboard))
    start = None
    if ranking.proposals and ranking.scenario is not None:
        start = start_config(ranking.proposals[0].overrides, situation, config, tuple(overrides))
    return Advice(situation, ranking.scenario, ranking.proposals, ranking.excluded, start)


def _gain(gain: Gain | None) -> dict[str, float | None] | None:
    return None if gain is None else {"mean": gain.mean, "low": gain.low, "high": gain.high}
