"""The situation of a user: models, data, what clients may upload, and which accuracy counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from polyfed.catalogue.upload_kinds import PARTS, UPLOAD_KINDS
from polyfed.config import Config
from polyfed.data.catalogue import KNOWN
from polyfed.errors import InputError, nearest
from polyfed.models.groups import group
from polyfed.models.spec import ModelSpec

CHOICES: Mapping[str, tuple[str, ...]] = {
    "models": ("same", "sizes", "different"),
    "data": ("images", "tables", "series", "tokens"),
    "care": ("common", "personal", "both"),
    "compute": ("low", "high"),
    "skew": ("strong", "mild"),
}
MILD_ALPHA = 0.5  # Dirichlet partitions from this alpha on count as mild label skew


@dataclass(frozen=True)
class Situation:
    """What is known of the clients, and what they want."""

    models: str = "different"
    data: str = "images"
    care: str = "both"
    compute: str = "high"
    skew: str = "strong"
    may_send: tuple[str, ...] | None = None  # kinds of information; None: all
    never: tuple[str, ...] = ()
    mib_per_round: float | None = None  # that one client may upload and download in a round
    clients: int | None = None
    differential_privacy: bool = False

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise InputError(f"{name} is '{value}'; expected {', '.join(choices)}")
        for name in ("may_send", "never"):
            for kind in getattr(self, name) or ():
                if kind not in UPLOAD_KINDS:
                    raise InputError(
                        f"{name} has '{kind}', which is no kind of upload; {nearest(kind, UPLOAD_KINDS)}"
                    )
        if self.mib_per_round is not None and not 0 <= self.mib_per_round < float("inf"):
            raise InputError(f"mib_per_round is {self.mib_per_round}; expected a number of at least 0")
        if self.clients is not None and self.clients < 1:
            raise InputError(f"clients is {self.clients}; expected 1 or more")

    def forbidden(self, kinds: Iterable[str]) -> list[str]:
        """Return the kinds of information that clients may not upload."""
        return [kind for kind in kinds if self._is_forbidden(kind)]

    def _is_forbidden(self, kind: str) -> bool:
        names = {kind, PARTS.get(kind, kind)}
        return bool(names & set(self.never)) or (self.may_send is not None and not names & set(self.may_send))


def situation_of(config: Config, wishes: Mapping[str, Any]) -> Situation:
    """Return the situation of a config. `wishes` are given by the user and replace what the config says."""
    read: dict[str, Any] = {"models": _models(config), "data": _data(config), "clients": config.clients}
    partition = config.data.partition
    if partition.get("scheme") == "iid" or float(partition.get("alpha", 0.0)) >= MILD_ALPHA:
        read["skew"] = "mild"
    if config.privacy:
        read["differential_privacy"] = True
    return replace(Situation(**read), **wishes)


def _models(config: Config) -> str:
    """Return how the models of a config differ. Models of one name in several sizes belong to one family."""
    entries = config.models.clients or config.models.group
    specs: Sequence[ModelSpec]
    specs = group(entries) if isinstance(entries, str) else [ModelSpec.of(entry) for entry in entries]
    if len(set(specs)) == 1 or config.models.assign in ("smallest", "largest"):
        return "same"
    families = {spec.name for spec in specs}
    return "sizes" if len(families) == 1 or config.splitting != "none" else "different"


def _data(config: Config) -> str:
    known = KNOWN.get(config.data.dataset)
    shape = config.data.shape or (known.shape if known is not None else None)
    if config.data.text is not None or (known is not None and known.kind == "tokens"):
        return "tokens"
    return {1: "tables", 2: "series"}.get(len(shape), "images") if shape else "images"
