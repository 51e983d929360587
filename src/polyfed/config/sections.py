"""The sections of a config: every key with its type, its default and its bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_serializer, model_validator

from polyfed import devices
from polyfed.errors import nearest

Metric = Literal["accuracy", "balanced_accuracy", "macro_f1", "auroc", "log_loss", "calibration_error", "confusion"]


def _accuracy() -> list[Metric]:
    return ["accuracy"]


class Section(BaseModel):
    """A group of keys. Unknown keys and wrong types are errors; values never change after validation."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True, allow_inf_nan=False)


class DataConfig(Section):
    """Dataset, data partition and test splits."""

    dataset: str = "digits"
    root: str | None = None  # folder with the files; None: scikit-learn, an installed package or the hub
    layout: Literal["auto", "folders", "parquet", "csv", "npz", "idx"] = "auto"  # of the files in root
    label: str | None = None  # column with the labels, in tables
    text: str | None = None  # column with the text, in tables
    vocabulary: int = Field(10_000, ge=2)  # tokens that words of a text are hashed to
    text_length: int = Field(64, ge=1)  # words per text
    tokenizer: str | None = None  # tokenizer.json of Hugging Face tokenizers, instead of hashed words
    resize: int | None = Field(None, ge=1)  # height and width that pictures are scaled to
    partition: dict[str, Any] = Field(default_factory=lambda: {"scheme": "dirichlet", "alpha": 0.1})
    merge_test: bool = False  # add the official test split to the training samples, before they are partitioned
    test_fraction: float = Field(0.25, ge=0, lt=1)
    personal_test: Literal["held-out", "matched"] = "held-out"
    shape: list[int] | None = Field(None, min_length=1, max_length=4)  # of a sample, for dataset: sites
    class_names: list[str] | None = Field(None, min_length=2)  # for dataset: sites
    validation: float = Field(0.0, ge=0, lt=1)  # fraction of the training samples that replaces all test data
    limit: int | None = Field(None, ge=1)
    test_limit: int | None = Field(None, ge=1)

    @field_validator("root", "tokenizer")
    @classmethod
    def _absolute_root(cls, value: str | None) -> str | None:
        return None if value is None else str(Path(value).expanduser().resolve())


class ModelsConfig(Section):
    """Architectures and their assignment to clients."""

    group: str | list[str | dict[str, Any]] = "tiny4"
    clients: list[str | dict[str, Any]] | None = None
    assign: Literal["round-robin", "blocks", "random", "smallest", "largest"] = "round-robin"
    feature_dim: int | None = Field(None, ge=1)
    feature_map: list[int] | None = Field(None, min_length=3, max_length=3)  # channels, height, width
    upscale_input: int | None = Field(None, ge=1)  # enlarge smaller images to this size, for every model
    server: str | dict[str, Any] | None = None  # server model if clients hold sub-models; None: the largest model
    shared_init: bool = False
    start: str | dict[str, str] | None = None  # trained weights: a folder for all clients, or one per client name

    @field_validator("start")
    @classmethod
    def _absolute_start(cls, value: str | dict[str, str] | None) -> str | dict[str, str] | None:
        """Make paths absolute, so that a run can be resumed from another working directory."""
        if isinstance(value, dict):
            return {name: str(Path(path).expanduser().resolve()) for name, path in value.items()}
        return None if value is None else str(Path(value).expanduser().resolve())


class TrainConfig(Section):
    """Local training of the clients."""

    epochs: int = Field(1, ge=0)
    steps: int | None = Field(None, ge=1)
    batch_size: int = Field(10, ge=1)
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = Field(0.01, gt=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    clip_norm: float | None = Field(None, gt=0)
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"  # of training and evaluation; tf32: NVIDIA GPUs only
    compile: bool = False  # compile models with torch.compile
    micro_batch: int | None = Field(None, ge=1)  # samples per pass; the gradients of a batch are added up


class EvaluateConfig(Section):
    """What is measured, and how often. The last round is always measured."""

    every: int = Field(1, ge=1)
    personal: bool = True
    global_: bool = Field(True, alias="global")
    cka: bool = False  # CKA similarity between participants' models, per stage
    features: bool = False  # participants' features of some test samples, for t-SNE
    metrics: list[Metric] = Field(default_factory=_accuracy)  # accuracy is always measured
    histograms: bool = False  # histogram of the server model's update, per layer
    record_uploads: list[int | str] = Field(default_factory=list)  # clients whose uploads are saved


class EngineConfig(Section):
    """Where clients run."""

    name: Literal["serial", "pool", "ray", "flower"] = "pool"
    # how pool workers start; auto: fork on Linux, spawn on macOS, and one process where there is no fork
    start: Literal["auto", "fork", "spawn"] = "auto"
    device: str = "auto"  # auto (the first of cuda, mps and cpu that this machine has), cpu, cuda or mps
    workers: int | Literal["auto"] = "auto"  # worker processes; with a GPU, worker processes per GPU
    device_memory: int | str = "auto"  # for clients and their data on a GPU, per worker; auto: half of its memory
    memory_budget: int | str = "2GB"  # client states in memory per worker; the rest is on disk
    timeout: float | None = Field(None, gt=0)  # seconds for one call to one client
    message_limit: int | str = "4GB"
    address: str | None = None  # address of a Ray cluster; None: start one on this machine
    cpus_per_worker: float = Field(1.0, gt=0)  # reserved by Ray for each worker
    gpus_per_worker: float = Field(0.0, ge=0)

    @field_validator("workers")
    @classmethod
    def _at_least_one_worker(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError("at least 1 worker is needed")
        return value

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if value not in devices.names():
            raise ValueError(f"there is no such device; {nearest(value, devices.names())}")
        return value

    @field_validator("memory_budget", "message_limit", "device_memory")
    @classmethod
    def _valid_size(cls, value: int | str, info: ValidationInfo) -> int | str:
        if value == "auto" and info.field_name == "device_memory":
            return value
        if size_in_bytes(value) < 1:
            raise ValueError("expected at least one byte")
        return value


class FailuresConfig(Section):
    """How a run handles clients that do not reply."""

    min_replies: int | float = 0.666  # a float is a share of the clients of a call, an integer a number of clients
    on_too_few: Literal["stop", "repeat"] = "stop"
    repeats: int = Field(2, ge=0)
    max_ratio: float | None = Field(1e4, gt=1)  # of a reply's values to the median over clients; null: unlimited
    strikes: int = Field(3, ge=1)  # rounds in which a client's replies are rejected before it is left out for good

    @field_validator("min_replies")
    @classmethod
    def _share_or_count(cls, value: float) -> float:
        if value < 1 if isinstance(value, int) else not 0 < value <= 1:
            raise ValueError("expected a share above 0 up to 1.0, or a number of clients from 1")
        return value


_RULES_WITH = {  # rules by option
    "share": ("trimmed-mean", "krum"),
    "norm": ("norm-clipped",),
    "keep": ("krum",),
    "secure": ("mean", "norm-clipped"),
}


class AggregationConfig(Section):
    """How the server combines the values of several clients."""

    name: Literal["mean", "median", "trimmed-mean", "norm-clipped", "krum", "geometric-median"] = "mean"
    share: float = Field(0.2, gt=0, lt=0.5)  # trimmed-mean: removed at each end; krum: clients that may lie
    norm: float | None = Field(None, gt=0)  # norm-clipped: largest norm; None: the median over the clients of a round
    keep: int = Field(1, ge=1)  # krum: number of replies that are averaged
    secure: bool = False  # mean and norm-clipped: the server sees sums over clients only

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _options_of_the_rule(self) -> AggregationConfig:
        if self.secure and self.name not in _RULES_WITH["secure"]:
            raise ValueError(f"{self.name} compares replies of single clients, which secure: true hides")
        if self.secure and self.name == "norm-clipped" and self.norm is None:
            raise ValueError("with secure: true clients clip their updates themselves; give norm, the largest norm")
        for option, names in _RULES_WITH.items():
            if self.name not in names and getattr(self, option) != type(self).model_fields[option].default:
                raise ValueError(f"{option} is an option of {' and '.join(names)}, not of {self.name}")
        return self

    @model_serializer
    def _without_other_options(self) -> dict[str, Any]:
        options = {option: getattr(self, option) for option, names in _RULES_WITH.items() if self.name in names}
        if not self.secure:
            options.pop("secure", None)
        return {"name": self.name, **options}


class PrivacyConfig(Section):
    """Differential privacy of one uploaded field: clipping, noise and accounting."""

    clip: float | None = Field(None, gt=0)  # norm bound of a row, or of the whole field
    epsilon: float | None = Field(None, gt=0)  # budget of all releases of the run together
    delta: float = Field(1e-5, gt=0, lt=1)
    noise: float | None = Field(None, gt=0)  # noise multiplier, instead of epsilon
    per_release: bool = False  # epsilon applies to one release; the result reports the total cost
    releases: int | None = Field(None, ge=1)  # releases per client in the whole run; None: every step once a round
    unit: Literal["auto", "row", "message"] = "auto"
    min_count: int | None = Field(None, ge=1)  # class means of fewer samples are not uploaded
    relative_to: str | None = None  # downloaded field that an update is relative to
    sensitivity: Literal["clip", "measured"] = "clip"

    @model_validator(mode="after")
    def _consistent_options(self) -> PrivacyConfig:
        if (self.epsilon is None) == (self.noise is None):
            raise ValueError("give either epsilon or noise")
        if self.sensitivity == "clip" and self.clip is None:
            raise ValueError("give clip, the norm that values are clipped to")
        if self.min_count is not None and (self.relative_to is not None or self.sensitivity == "measured"):
            raise ValueError("min_count cannot be combined with relative_to or sensitivity: measured")
        if self.noise is not None and self.per_release:
            raise ValueError("per_release applies to epsilon, but noise is given")
        if self.sensitivity == "measured" and (self.epsilon is None or self.epsilon > 1):
            raise ValueError("sensitivity: measured needs epsilon of at most 1, for which its noise is defined")
        return self


class CheckpointConfig(Section):
    """How often checkpoints are written: after a round, if the last checkpoint is at least this old."""

    seconds: float = Field(10.0, ge=0)


def size_in_bytes(value: int | str) -> int:
    """Return a number of bytes, from a number or a text such as '2GB' or '500 MB'."""
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
