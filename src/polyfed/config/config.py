"""The config of an experiment: validate what a user wrote, fill in the defaults, and hash the result."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, field_validator

from polyfed.config.loading import apply_overrides, read_source
from polyfed.config.sections import (
    AggregationConfig,
    CheckpointConfig,
    DataConfig,
    EngineConfig,
    EvaluateConfig,
    FailuresConfig,
    ModelsConfig,
    PrivacyConfig,
    Section,
    TrainConfig,
)
from polyfed.config.validation_message import validation_message
from polyfed.errors import InputError
from polyfed.runs.added_keys import ADDED_KEYS

if TYPE_CHECKING:
    from polyfed.catalogue import MethodInfo


class Config(Section):
    """The settings of one experiment."""

    name: str | None = None
    method: dict[str, Any] = Field(default_factory=lambda: {"name": "fedproto"})
    splitting: Literal["none", "layer", "stage", "width", "architecture"] = "none"
    server_filter: str | dict[str, Any] = "none"
    aggregation: AggregationConfig = AggregationConfig()
    data: DataConfig = DataConfig()
    models: ModelsConfig = ModelsConfig()
    clients: int = Field(20, ge=1)
    names: list[str] | None = None  # client names; None: their numbers
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
    _user_code: str = PrivateAttr("")

    @field_validator("name")
    @classmethod
    def _valid_folder_name(cls, value: str | None) -> str | None:
        if value is not None and (not value or value in {".", ".."} or "/" in value or "\0" in value):
            raise ValueError("the name of a run becomes a folder, so it cannot be empty or contain '/'")
        return value

    @field_validator("names")
    @classmethod
    def _valid_client_names(cls, value: list[str] | None) -> list[str] | None:
        for name in value or ():
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
                raise ValueError(f"the name '{name}' does not consist of 1 to 64 letters, digits, '.', '_' and '-'")
        if value is not None and len(set(value)) != len(value):
            raise ValueError("two clients have the same name")
        return value

    @field_validator("imports")
    @classmethod
    def _absolute_imports(cls, value: list[str]) -> list[str]:
        """Make file paths absolute, so that a run can be resumed from another working directory."""
        return [str(Path(name).expanduser().resolve()) if name.endswith(".py") else name for name in value]

    @property
    def client_names(self) -> tuple[str, ...]:
        """The clients' names, in client order."""
        return tuple(self.names) if self.names is not None else tuple(str(k) for k in range(self.clients))

    @property
    def per_round(self) -> int:
        """The number of clients that participate in a round."""
        return round(self.participation * self.clients)

    @property
    def run_name(self) -> str:
        """The name of the run and of its folder."""
        return self.name or f"{self.method['name']}-{self.data.dataset}-seed{self.seed}-{self.hash()[:6]}"

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> Config:
        """Load a complete config that `to_dict` returned. Workers use this: no defaults have to be looked up."""
        return cls.model_validate(entries)

    @property
    def user_code(self) -> str:
        """Source of the module that registers the user's models and methods in workers."""
        return self._user_code

    def with_user_code(self, source: str) -> Config:
        """Return a copy with the source of the module that workers import."""
        copy = self.model_copy()
        copy._user_code = source
        return copy

    def to_dict(self) -> dict[str, Any]:
        """Return all settings including defaults, under the keys of a config file."""
        return self.model_dump(mode="json", by_alias=True)

    def hash(self) -> str:
        """Return a digest of the settings that affect results: all but name, engine, checkpoint and track."""
        counted = {k: v for k, v in self.to_dict().items() if k not in {"name", "engine", "checkpoint", "track"}}
        for section, added in ADDED_KEYS.items():
            for key, default in added.items():
                if counted[section][key] == default:
                    del counted[section][key]
        if self.aggregation == AggregationConfig():
            del counted["aggregation"]
        return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()


def load_config(source: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a config file or a preset, apply 'key=value' overrides, and parse the result."""
    return parse(apply_overrides(read_source(source), overrides), str(source))


def parse(raw: Mapping[str, Any], where: str = "config") -> Config:
    """Validate a user's config and fill in defaults.

    Raise `InputError` for the first problem; `where` names the source of the config in the message.
    """
    entries = dict(raw)
    entries.pop("versions", None)  # a run folder's config.yaml also records versions
    if isinstance(entries.get("method"), str):
        entries["method"] = {"name": entries["method"]}
    try:
        config = Config.model_validate(entries)
    except ValidationError as error:
        raise InputError(f"{where}: {validation_message(error, Config)}") from None
    if not isinstance(config.method.get("name"), str):
        raise InputError(f"{where}: method has no name; write method: {{name: fedproto}}")
    if isinstance(config.server_filter, dict) and not isinstance(config.server_filter.get("name"), str):
        raise InputError(f"{where}: server_filter has no name; write server_filter: {{name: inco}}")
    if config.names is not None and len(config.names) != config.clients:
        raise InputError(f"{where}: names has {len(config.names)} entries for {config.clients} clients")
    config = _fill_defaults(config)
    if config.per_round < 1:
        raise InputError(
            f"{where}: participation {config.participation:g} of {config.clients} clients selects no client; "
            f"use at least {1 / config.clients:g}"
        )
    if isinstance(config.failures.min_replies, int) and config.failures.min_replies > config.per_round:
        raise InputError(
            f"{where}: failures.min_replies is {config.failures.min_replies}, but only {config.per_round} clients "
            "participate in a round"
        )
    return config


def _fill_defaults(config: Config) -> Config:
    """Write out the defaults of the method, filter and partition, so that later changes of them do not matter."""
    from polyfed import catalogue
    from polyfed.data.partition_settings import SCHEMES

    method = _with_defaults(config.method, _declared(config.method["name"]))
    server_filter = config.server_filter
    filter_settings = {"name": server_filter} if isinstance(server_filter, str) else server_filter
    if filter_settings["name"] == "none":
        server_filter = "none"
    else:
        server_filter = _with_defaults(filter_settings, catalogue.filters().get(filter_settings["name"]))
    partition = dict(config.data.partition)
    scheme = SCHEMES.get(str(partition.get("scheme")))
    if scheme is not None:
        defaults = {name: option.default for name, option in scheme.options.items() if not option.required}
        partition = {"scheme": partition["scheme"], **defaults, **partition}
    if isinstance(partition.get("path"), str):
        partition["path"] = str(Path(partition["path"]).expanduser().resolve())
    data = config.data.model_copy(update={"partition": partition})
    return config.model_copy(update={"method": method, "server_filter": server_filter, "data": data})


def _declared(name: str) -> MethodInfo | None:
    """Return the declaration of a method. Options of an alias are not filled in."""
    from polyfed import catalogue

    info = catalogue.find_method(name)
    return info if info is not None and info.name == name else None


def _with_defaults(settings: Mapping[str, Any], info: MethodInfo | None) -> dict[str, Any]:
    """Return the options of a method or filter, with defaults for those that are not given."""
    options = info.options if info is not None else []
    complete = {"name": settings["name"], **{option.name: option.default for option in options}, **settings}
    for option in options:
        given = complete[option.name]
        if isinstance(option.default, float) and type(given) is int:
            complete[option.name] = float(given)
        if given is False and "off" in re.findall(r"\w+", option.type):  # YAML reads the word off as False
            complete[option.name] = "off"
    return complete
