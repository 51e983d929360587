"""The config: every key, its type and its default. Unknown keys and wrong types are refused in one sentence."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from polyfed.errors import InputError, nearest

if TYPE_CHECKING:
    from polyfed.catalogue import MethodInfo


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True, allow_inf_nan=False)


class DataConfig(_Section):
    """What is learned from, and how it is shared out."""

    dataset: str = "digits"
    root: str | None = None
    partition: dict[str, Any] = Field(default_factory=lambda: {"scheme": "dirichlet", "alpha": 0.1})
    test_fraction: float = Field(0.25, ge=0, lt=1)
    personal_test: Literal["held-out", "matched"] = "held-out"
    shape: list[int] | None = Field(None, min_length=3, max_length=3)  # of sites' own images, with dataset: sites
    class_names: list[str] | None = Field(None, min_length=2)  # of sites' own data
    limit: int | None = Field(None, ge=1)
    test_limit: int | None = Field(None, ge=1)

    @field_validator("root")
    @classmethod
    def _root_from_anywhere(cls, value: str | None) -> str | None:
        return None if value is None else str(Path(value).expanduser().resolve())


class ModelsConfig(_Section):
    """Which client gets which architecture."""

    group: str | list[str | dict[str, Any]] = "tiny4"
    clients: list[str | dict[str, Any]] | None = None
    assign: Literal["round-robin", "blocks", "random", "smallest", "largest"] = "round-robin"
    feature_dim: int | None = Field(None, ge=1)
    feature_map: list[int] | None = Field(None, min_length=3, max_length=3)  # or a map of channels, height, width
    server: str | dict[str, Any] | None = None  # the server's model, where clients hold sub-models; none: the largest
    shared_init: bool = False


class TrainConfig(_Section):
    """How clients train."""

    epochs: int = Field(1, ge=0)
    steps: int | None = Field(None, ge=1)
    batch_size: int = Field(10, ge=1)
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = Field(0.01, gt=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    clip_norm: float | None = Field(None, gt=0)


class EvaluateConfig(_Section):
    """What is measured, and how often. The last round is always measured."""

    every: int = Field(1, ge=1)
    personal: bool = True
    global_: bool = Field(True, alias="global")
    cka: bool = False  # similarity of the participants' models, per stage
    features: bool = False  # the participants' features of some test samples, for a map of them
    histograms: bool = False  # the update of the server's model, per layer
    record_uploads: list[int | str] = Field(default_factory=list)  # clients whose replies are kept as they left


class EngineConfig(_Section):
    """Where clients run."""

    name: Literal["serial", "pool", "ray", "flower"] = "pool"
    workers: int | Literal["auto"] = "auto"
    memory_budget: int | str = "2GB"  # states of live clients per worker, before they are left to the disk
    timeout: float | None = Field(None, gt=0)  # seconds one client may take for one call
    message_limit: int | str = "4GB"
    address: str | None = None  # of a Ray cluster; none: one is started on this machine
    cpus_per_worker: float = Field(1.0, gt=0)  # what Ray sets aside for each worker
    gpus_per_worker: float = Field(0.0, ge=0)

    @field_validator("workers")
    @classmethod
    def _some_workers(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError("at least 1 worker is needed")
        return value

    @field_validator("memory_budget", "message_limit")
    @classmethod
    def _a_size(cls, value: int | str) -> int | str:
        if size_in_bytes(value) < 1:
            raise ValueError("expected at least one byte")
        return value


class FailuresConfig(_Section):
    """What to do when clients do not answer."""

    min_replies: int = Field(1, ge=0)
    on_too_few: Literal["stop", "repeat"] = "stop"
    repeats: int = Field(2, ge=0)


class PrivacyConfig(_Section):
    """How one field is protected before it leaves a client."""

    clip: float | None = Field(None, gt=0)  # the norm that a row, or the whole field, is cut to
    epsilon: float | None = Field(None, gt=0)  # of all releases of the run together
    delta: float = Field(1e-5, gt=0, lt=1)
    noise: float | None = Field(None, gt=0)  # instead of epsilon: the deviation, in multiples of the sensitivity
    per_release: bool = False  # epsilon is that of one release; what all cost together is in the result
    releases: int | None = Field(None, ge=1)  # by one client in the whole run; none: every step once a round
    unit: Literal["auto", "row", "message"] = "auto"
    min_count: int | None = Field(None, ge=1)  # samples behind a row of class means; rows with fewer do not leave
    relative_to: str | None = None  # a field that came down, from which an update is counted
    sensitivity: Literal["clip", "measured"] = "clip"

    @model_validator(mode="after")
    def _enough_and_not_too_much(self) -> PrivacyConfig:
        if (self.epsilon is None) == (self.noise is None):
            raise ValueError("give either epsilon or noise")
        if self.sensitivity == "clip" and self.clip is None:
            raise ValueError("give clip, the norm that values are cut to")
        if self.min_count is not None and (self.relative_to is not None or self.sensitivity == "measured"):
            raise ValueError("min_count goes with neither relative_to nor sensitivity: measured")
        if self.noise is not None and self.per_release:
            raise ValueError("per_release is about epsilon, and noise is given")
        if self.sensitivity == "measured" and (self.epsilon is None or self.epsilon > 1):
            raise ValueError("sensitivity: measured needs epsilon of at most 1, for which its noise is defined")
        return self


class CheckpointConfig(_Section):
    """How much work a kill may cost: a checkpoint is written after a round when the last one is this old."""

    seconds: float = Field(10.0, ge=0)


class Config(_Section):
    """A whole experiment."""

    name: str | None = None
    method: dict[str, Any] = Field(default_factory=lambda: {"name": "fedproto"})
    splitting: Literal["none", "layer", "stage", "width", "architecture"] = "none"
    server_filter: str | dict[str, Any] = "none"
    data: DataConfig = DataConfig()
    models: ModelsConfig = ModelsConfig()
    clients: int = Field(20, ge=1)
    names: list[str] | None = None  # what the clients are called; none: their numbers
    participation: float = Field(1.0, gt=0, le=1)
    rounds: int = Field(10, ge=1)
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    engine: EngineConfig = EngineConfig()
    failures: FailuresConfig = FailuresConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    privacy: dict[str, PrivacyConfig] | None = None  # by field of the method's uploads
    imports: list[str] = Field(default_factory=list)  # modules or files that register methods and models
    track: list[str] = Field(default_factory=list)  # trackers: tensorboard, mlflow, wandb, or module:Class
    seed: int = Field(0, ge=0)

    @field_validator("name")
    @classmethod
    def _a_folder_name(cls, value: str | None) -> str | None:
        if value is not None and (not value or value in {".", ".."} or "/" in value or "\0" in value):
            raise ValueError("the name of a run becomes a folder, so it cannot be empty or hold '/'")
        return value

    @field_validator("names")
    @classmethod
    def _distinct_names(cls, value: list[str] | None) -> list[str] | None:
        for name in value or ():
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
                raise ValueError(f"the name '{name}' is not made of 1 to 64 letters, digits, '.', '_' and '-'")
        if value is not None and len(set(value)) != len(value):
            raise ValueError("two clients have the same name")
        return value

    @field_validator("imports")
    @classmethod
    def _files_from_anywhere(cls, value: list[str]) -> list[str]:
        """Files are kept with their whole path, so that a run can be resumed from another folder."""
        return [str(Path(name).expanduser().resolve()) if name.endswith(".py") else name for name in value]

    @property
    def client_names(self) -> tuple[str, ...]:
        """The clients' names, in their fixed order."""
        return tuple(self.names) if self.names is not None else tuple(str(k) for k in range(self.clients))

    @property
    def per_round(self) -> int:
        """How many clients take part in a round."""
        return round(self.participation * self.clients)

    @property
    def run_name(self) -> str:
        return self.name or f"{self.method['name']}-{self.data.dataset}-seed{self.seed}-{self.hash()[:6]}"

    def to_dict(self) -> dict[str, Any]:
        """Everything, with defaults written out, under the keys a user writes."""
        return self.model_dump(mode="json", by_alias=True)

    def hash(self) -> str:
        """Equal for configs that must lead to equal results: name, engine, checkpoints and trackers do not count."""
        counted = {k: v for k, v in self.to_dict().items() if k not in {"name", "engine", "checkpoint", "track"}}
        return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()


def parse(raw: Mapping[str, Any], where: str = "config") -> Config:
    """A config from what a user wrote; the first thing that is wrong becomes one sentence."""
    entries = dict(raw)
    entries.pop("versions", None)  # a run folder's config has them; they are no setting
    if isinstance(entries.get("method"), str):
        entries["method"] = {"name": entries["method"]}
    try:
        config = Config.model_validate(entries)
    except ValidationError as error:
        raise InputError(f"{where}: {_sentence(error)}") from None
    if not isinstance(config.method.get("name"), str):
        raise InputError(f"{where}: method has no name; write method: {{name: fedproto}}")
    if isinstance(config.server_filter, dict) and not isinstance(config.server_filter.get("name"), str):
        raise InputError(f"{where}: server_filter has no name; write server_filter: {{name: inco}}")
    if config.names is not None and len(config.names) != config.clients:
        raise InputError(f"{where}: names has {len(config.names)} entries for {config.clients} clients")
    config = _completed(config)
    if config.per_round < 1:
        raise InputError(
            f"{where}: participation {config.participation:g} of {config.clients} clients selects nobody; "
            f"use at least {1 / config.clients:g}"
        )
    if config.failures.min_replies > config.per_round:
        raise InputError(
            f"{where}: failures.min_replies is {config.failures.min_replies}, but only {config.per_round} clients "
            "take part in a round"
        )
    return config


def _completed(config: Config) -> Config:
    """The config with the defaults of its method and of its partition written out, so that it stays what it was."""
    from polyfed import catalogue
    from polyfed.data.partition_settings import SCHEMES

    method = _with_defaults(config.method, catalogue.methods())
    asked = config.server_filter
    settings = {"name": asked} if isinstance(asked, str) else asked
    chosen = "none" if settings["name"] == "none" else _with_defaults(settings, catalogue.filters())
    partition = dict(config.data.partition)
    scheme = SCHEMES.get(str(partition.get("scheme")))
    if scheme is not None:
        known = {name: option.default for name, option in scheme.options.items() if not option.required}
        partition = {"scheme": partition["scheme"], **known, **partition}
    if isinstance(partition.get("path"), str):
        partition["path"] = str(Path(partition["path"]).expanduser().resolve())
    data = config.data.model_copy(update={"partition": partition})
    return config.model_copy(update={"method": method, "server_filter": chosen, "data": data})


def _with_defaults(settings: Mapping[str, Any], known: Mapping[str, MethodInfo]) -> dict[str, Any]:
    """The fields of a method or filter, those that were not given with their defaults."""
    listed = known.get(settings["name"])
    options = listed.options if listed is not None else []
    complete = {"name": settings["name"], **{option.name: option.default for option in options}, **settings}
    for option in options:
        given = complete[option.name]
        if isinstance(option.default, float) and type(given) is int:
            complete[option.name] = float(given)
        if given is False and "off" in re.findall(r"\w+", option.type):  # what YAML makes of the word
            complete[option.name] = "off"
    return complete


def size_in_bytes(value: int | str) -> int:
    """2147483648, '2GB', '500 MB': a number of bytes."""
    if isinstance(value, int):
        return value
    units = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
    text = value.strip().upper()
    for unit in sorted(units, key=len, reverse=True):
        if text.endswith(unit):
            try:
                return int(float(text[: -len(unit)]) * units[unit])
            except (ValueError, OverflowError):
                break
    raise ValueError("expected a number of bytes or a size such as 2GB")


def _sentence(error: ValidationError) -> str:
    problem = error.errors()[0]
    place = _keys(problem["loc"])
    key = ".".join(place)
    if problem["type"] == "extra_forbidden":
        section = _section(place[:-1])
        known = [field.alias or name for name, field in section.model_fields.items()]
        inside = f" in '{'.'.join(place[:-1])}'" if place[:-1] else ""
        return f"unknown key '{place[-1]}'{inside}; {nearest(place[-1], known)}"
    said = problem["msg"].removeprefix("Value error, ")
    said = (said[0].lower() + said[1:]).replace("input should be", "expected")
    return f"{key} is {problem['input']!r}: {said}"


def _keys(location: tuple[int | str, ...]) -> list[str]:
    """The keys in a place where something was wrong, without the kinds of value that pydantic tried there."""
    section: type[BaseModel] | None = Config
    named = False  # whether the next key is one that users choose
    keys: list[str] = []
    for part in location:
        if named:
            keys.append(str(part))
            named = False
            continue
        if section is None:
            if keys[-1:] != [str(part)] and isinstance(part, int):
                keys.append(str(part))
            continue
        keys.append(str(part))
        section, named = _inside(section, part)
    return keys


def _section(place: list[str]) -> type[BaseModel]:
    section: type[BaseModel] = Config
    named = False
    for key in place:
        if named:
            named = False
            continue
        inner, named = _inside(section, key)
        if inner is None:
            break
        section = inner
    return section


def _inside(section: type[BaseModel], key: int | str) -> tuple[type[BaseModel] | None, bool]:
    """The section under a key, and whether there is one of them for every name that a user writes below the key."""
    found = next((f for n, f in section.model_fields.items() if (f.alias or n) == key), None)
    annotation = found.annotation if found is not None else None
    for part in (annotation, *get_args(annotation)):
        held = get_args(part)[-1] if get_origin(part) is dict else part
        if isinstance(held, type) and issubclass(held, BaseModel):
            return held, held is not part
    return None, False
