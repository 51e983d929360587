"""The description of one client's model, as text and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from polyfed.errors import InputError, nearest

Shape = tuple[int, ...]  # shape of one sample: (channels, height, width), (channels, steps), (columns,) or (tokens,)
NORMS = ("batch", "group", "layer", "none")
STEMS = ("auto", "image", "small")
ADAPTERS = ("auto", "pool1d", "linear", "conv_pool")


HEAD_PATTERN = re.compile(r"(relu|tanh)-([1-9]\d{0,5})")


def hidden_layer(head: str | None) -> tuple[str, int] | None:
    """Return activation and units of a head's hidden layer, or None for a head of one linear layer."""
    if head is None or head == "linear":
        return None
    match = HEAD_PATTERN.fullmatch(head)
    if match is None:
        raise InputError(f"Unknown head '{head}'. Use 'linear', or 'relu-N' or 'tanh-N' with N hidden units.")
    return match[1], int(match[2])


@dataclass(frozen=True)
class ModelSpec:
    """An architecture and how it differs from the published one. The defaults are the published architecture.

    `norm` and `stem` apply only to architectures that have such a part: a transformer keeps its layer norms.
    """

    name: str
    width: float = 1.0  # every hidden layer keeps ceil(width * n) of its n outputs
    norm: str = "batch"  # batch | group | layer (one group over all channels) | none
    stem: str = "auto"  # image: 7x7/2 + pool | small: 3x3/1 | auto: small below 32 pixels
    feature_dim: int | None = None  # feature width; None for the architecture's own
    feature_map: tuple[int, int, int] | None = None  # features are a flattened (channels, height, width)
    adapter: str = "auto"  # auto: pool1d for feature_dim, conv_pool for feature_map (linear if features are flat)
    head: str | None = None  # None: one linear layer | relu-256, tanh-768: one hidden layer in between
    dropout: float | None = None  # dropout rate on the features; None for the architecture's own
    pool_input: int | None = None  # average-pool larger images to this size first
    upscale_input: int | None = None  # enlarge smaller images to this size first (nearest neighbour)
    exits: tuple[int, ...] | None = None  # early exits after these numbers of blocks; the model ends at the last exit
    mean: tuple[float, ...] = (0.5,)  # input normalisation, one value or one per channel
    std: tuple[float, ...] = (0.5,)
    vocabulary: int | None = None  # number of tokens, for text models; a federation fills it in from its data

    def __post_init__(self) -> None:
        _check_choice(self.name, "norm", self.norm, NORMS)
        _check_choice(self.name, "stem", self.stem, STEMS)
        _check_choice(self.name, "adapter", self.adapter, ADAPTERS)
        hidden_layer(self.head)
        if not 0 < self.width <= 16:
            raise InputError(f"Model '{self.name}': width is {self.width}; expected a number above 0 and at most 16.")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise InputError(f"Model '{self.name}': dropout is {self.dropout}; expected at least 0 and below 1.")
        if self.feature_dim is not None and self.feature_dim < 1:
            raise InputError(f"Model '{self.name}': feature_dim is {self.feature_dim}; expected 1 or more.")
        if self.feature_map is not None and (len(self.feature_map) != 3 or min(self.feature_map) < 1):
            raise InputError(
                f"Model '{self.name}': feature_map is {self.feature_map}; expected three sizes of 1 or more "
                "(channels, height, width)."
            )
        if self.feature_dim is not None and self.feature_map is not None:
            raise InputError(f"Model '{self.name}': feature_dim and feature_map are both set; set only one.")
        if self.adapter == "conv_pool" and self.feature_map is None:
            raise InputError(f"Model '{self.name}': adapter conv_pool needs feature_map, which is not set.")
        if self.pool_input is not None and self.pool_input < 1:
            raise InputError(f"Model '{self.name}': pool_input is {self.pool_input}; expected 1 or more.")
        if self.upscale_input is not None and self.upscale_input < 1:
            raise InputError(f"Model '{self.name}': upscale_input is {self.upscale_input}; expected 1 or more.")
        if self.exits is not None and (
            not self.exits or any(b <= a for a, b in zip((0, *self.exits), self.exits, strict=False))
        ):
            raise InputError(
                f"Model '{self.name}': exits are {list(self.exits)}; expected ascending numbers of blocks from 1."
            )
        if min(self.std, default=0.0) <= 0 or not self.mean:
            raise InputError(
                f"Model '{self.name}': input normalisation has mean {self.mean} and std {self.std}; "
                "expected one value or one per channel, with std above 0."
            )

    @property
    def label(self) -> str:
        """Display name: the architecture, its width if it is not 1, and its early exits."""
        width = "" if self.width == 1 else f"@{self.width:g}"
        return self.name + width + (":" + "-".join(map(str, self.exits)) if self.exits else "")

    @property
    def text(self) -> str:
        """The complete spec in one line: the label if it is sufficient, JSON otherwise."""
        return self.label if type(self).parse(self.label) == self else json.dumps(self.to_json(), sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> ModelSpec:
        """Parse `text` or `label`: 'resnet26@0.5:3-6' has half the width, and exits after blocks 3 and 6."""
        if text.startswith("{"):
            return cls.from_json(json.loads(text))
        sized, colon, depths = text.partition(":")
        name, at, width = sized.partition("@")
        try:
            exits = tuple(int(depth) for depth in depths.split("-")) if colon else None
        except ValueError:
            raise InputError(
                f"Model '{text}': the exits after ':' are '{depths}'; expected numbers of blocks such as 3-6."
            ) from None
        try:
            return cls(name, width=float(width) if at else 1.0, exits=exits)
        except ValueError:
            raise InputError(f"Model '{text}': the width after '@' is '{width}'; expected a number.") from None

    def to_json(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults, with lists instead of tuples."""
        defaults = {f.name: f.default for f in fields(self)}
        entries = {k: v for k, v in asdict(self).items() if defaults[k] is MISSING or v != defaults[k]}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in entries.items()}

    @classmethod
    def of(cls, entry: str | Mapping[str, Any]) -> ModelSpec:
        """Parse an entry of a config, a string or a mapping."""
        return cls.parse(entry) if isinstance(entry, str) else cls.from_json(entry)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> ModelSpec:
        """Return the spec of a mapping; raise InputError for unknown keys and wrong types."""
        field_names = [f.name for f in fields(cls)]
        for key in entry:
            if key not in field_names:
                raise InputError(f"Model entry has the unknown key '{key}'; {nearest(str(key), field_names)}.")
        if not isinstance(entry.get("name"), str):
            raise InputError(f"Model entry {dict(entry)} has no name; expected the name of a model.")
        wrong = [k for k, v in entry.items() if not _fits(k, v)]
        if wrong:
            raise InputError(
                f"Model entry '{entry['name']}': {wrong[0]} is {entry[wrong[0]]!r}, which is not of the right type."
            )
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
        return cls(**values)


_WORDS = {"name", "norm", "stem", "adapter"}
_SIZES = {"feature_dim", "pool_input", "upscale_input", "vocabulary"}


def _fits(key: str, value: object) -> bool:
    """Return whether a value from a file has the type of its field."""
    if key in _WORDS:
        return isinstance(value, str)
    if key == "width":
        return _is_number(value)
    if value is None:
        return key not in {"mean", "std"}
    if key == "head":
        return isinstance(value, str)
    if key == "dropout":
        return _is_number(value)
    if key in _SIZES:
        return isinstance(value, int) and not isinstance(value, bool)
    if not isinstance(value, list | tuple):
        return False
    if key in ("feature_map", "exits"):
        return all(isinstance(v, int) and not isinstance(v, bool) for v in value)
    return all(_is_number(v) for v in value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_choice(model: str, key: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise InputError if a value is not one of the allowed ones."""
    if value not in allowed:
        raise InputError(f"Model '{model}': {key} is '{value}'; {nearest(value, allowed)}.")
