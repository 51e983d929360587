"""Rank methods for a situation, and say why others are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyfed import catalogue
from polyfed.advice.situation import Situation
from polyfed.catalogue import MethodInfo
from polyfed.config.loading import override_text
from polyfed.leaderboard.records import Gain, Leaderboard, Row, ScenarioRecord
from polyfed.leaderboard.scenarios import LOCAL, SCENARIOS, base_method, method_overrides

MIB = 1 << 20
MUCH_WORK = 2.0  # times the work of local training; more is too much for weak clients
SECOND_MODELS = ("shared-model", "decoder")  # uploads of methods that train a model besides the client's own
ROW_BY_ROW = frozenset({"class-means", "class-outputs", "counts"})  # one sample influences one row


@dataclass(frozen=True)
class Proposal:
    """A method that fits, with what the leaderboard measured of it. None: not measured."""

    method: str
    uploads: tuple[str, ...]
    overrides: tuple[str, ...]  # settings that select the method
    common: Gain | None = None
    personal: Gain | None = None
    mib_up: float | None = None  # of one client in one round
    mib_down: float | None = None

    def score(self, care: str) -> float | None:
        """Return the gain that counts, in points: the mean of both if the user cares for both."""
        gains = {"common": self.common, "personal": self.personal}
        wanted = [gain for name, gain in gains.items() if care in (name, "both")]
        if any(gain is None for gain in wanted):
            return None
        return sum(gain.mean for gain in wanted if gain is not None) / len(wanted)


@dataclass(frozen=True)
class Ranking:
    """The methods that fit, best first, and the reasons against all others."""

    scenario: str | None  # None: the leaderboard has no measurements, and methods are in alphabetical order
    proposals: tuple[Proposal, ...]
    excluded: Mapping[str, str]


def rank(situation: Situation, board: Leaderboard) -> Ranking:
    """Rank the methods by their gain in the most similar scenario. Without measurements, list those that fit."""
    record = similar_scenario(situation, board)
    rows = {row.method: row for row in record.rows if row.method != LOCAL} if record is not None else {}
    proposals: list[Proposal] = []
    excluded: dict[str, str] = {}
    known = catalogue.methods()
    for name in dict.fromkeys([*known, *rows]):
        if name == LOCAL:
            continue
        info, row = known[base_method(name)], rows.get(name)
        reason = _requirement(info, situation, row) or _wish(info, situation, row)
        if reason is None and record is not None:
            reason = _measured_reason(name, info, row, record, situation)
        if reason is not None:
            excluded[name] = reason
        elif row is None or record is None:
            proposals.append(Proposal(name, info.upload_kinds, method_overrides(name)))
        else:
            proposals.append(_proposal(name, info, row, record))
    proposals.sort(key=lambda one: -(one.score(situation.care) or 0.0))
    return Ranking(None if record is None else record.scenario, tuple(proposals), excluded)


def similar_scenario(situation: Situation, board: Leaderboard) -> ScenarioRecord | None:
    """Return the measured scenario that is most similar: by kind of data, then by models, then by label skew.

    No scenario has tables or tokens: for them, models and label skew decide.
    """

    def likeness(record: ScenarioRecord) -> tuple[bool, bool, bool]:
        scenario = SCENARIOS[record.scenario]
        return (
            scenario.data == situation.data,
            (scenario.models == "sizes") == (situation.models == "sizes"),
            scenario.skew == situation.skew,
        )

    measured = [record for name, record in board.scenarios.items() if name in SCENARIOS and record.rows]
    return max(measured, key=likeness, default=None)


def _requirement(info: MethodInfo, situation: Situation, row: Row | None) -> str | None:
    """Return the requirement of a method that the clients do not meet, in one phrase."""
    if "images" in info.requires and situation.data != "images":
        return "needs samples that are pictures"
    if "numbers" in info.requires and situation.data == "tokens":
        return "needs samples that are numbers"
    if "sub_models" in info.requires and situation.models != "sizes":
        return "needs models that are slices of the largest"
    on_one_model = row is None or row.models.startswith("all ")  # it did not run on parts of one model
    if "same_architecture" in info.requires and situation.models != "same":
        return "needs one architecture" if situation.models == "different" or on_one_model else None
    return None


def _wish(info: MethodInfo, situation: Situation, row: Row | None) -> str | None:
    """Return what the user does not want of a method, in one phrase."""
    undeclared = not info.upload_kinds and info.sends_up != "nothing"
    restricted = situation.may_send is not None or situation.never or situation.differential_privacy
    if undeclared and restricted:
        return "does not declare what kinds of information it uploads"
    forbidden = situation.forbidden(info.upload_kinds)
    if forbidden:
        return f"uploads {', '.join(forbidden)}"
    if situation.differential_privacy and not set(info.upload_kinds) <= ROW_BY_ROW:
        kinds = [kind for kind in info.upload_kinds if kind not in ROW_BY_ROW]
        return f"uploads {', '.join(kinds)}, which need far more noise than class means"
    if situation.compute == "low":
        second = [kind for kind in info.upload_kinds if kind in SECOND_MODELS]
        if second:
            return f"trains a second model ({', '.join(second)})"
        if row is not None and row.work is not None and row.work > MUCH_WORK:
            return f"trains {row.work:.1f} times as much as local training"
    return None


def _measured_reason(
    name: str, info: MethodInfo, row: Row | None, record: ScenarioRecord, situation: Situation
) -> str | None:
    """Return what the leaderboard says against a method, in one phrase."""
    if row is None:
        # a refusal there holds here only if the models differ in the same way
        refused = record.excluded if SCENARIOS[record.scenario].models == situation.models else {}
        return refused.get(name, f"not measured in {record.scenario}")
    proposal = _proposal(name, info, row, record)
    traffic = (proposal.mib_up or 0.0) + (proposal.mib_down or 0.0)
    if situation.mib_per_round is not None and traffic > situation.mib_per_round:
        return f"sends {traffic:.3f} MiB per client and round"
    return f"no gain measured in {record.scenario}" if proposal.score(situation.care) is None else None


def _proposal(name: str, info: MethodInfo, row: Row, record: ScenarioRecord) -> Proposal:
    calls = max(1, record.rounds * record.clients_per_round)
    up, down = ((row.mean(way) or 0.0) / calls / MIB for way in ("up", "down"))
    gains, overrides = row.gains, (*row.overrides, override_text("train.lr", row.rate))
    return Proposal(name, info.upload_kinds, overrides, gains.get("global"), gains.get("personal"), up, down)
