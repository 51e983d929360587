"""Model groups of the papers, and CPU-sized groups. Clients receive the members of a group round-robin."""

from __future__ import annotations

from dataclasses import dataclass

from polyfed.errors import InputError, nearest
from polyfed.models.spec import ModelSpec


@dataclass(frozen=True)
class ModelGroup:
    """The models of a group, and the additional models that some methods train."""

    name: str
    members: tuple[ModelSpec, ...]
    server: ModelSpec | None = None  # the global network of FedFree
    auxiliary: ModelSpec | None = None  # a small model that every client trains in addition to its own


RESNETS_FEDVTC = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
HTFE2 = ("cnn4", "resnet18")
HTFE3 = ("resnet10", "resnet18", "resnet34")
HTFE4 = ("cnn4", "googlenet", "mobilenet-v2", "resnet18")
HTFE8 = ("cnn4", "googlenet", "mobilenet-v2", *RESNETS_FEDVTC)
HTFE9 = ("resnet4", "resnet6", "resnet8", "resnet10", *RESNETS_FEDVTC)
DFFKE_5 = ("resnet18", "mobilenet-v3-small", "mobilenet-v3-large", "shufflenet-v2-x1.5", "shufflenet-v2-x2.0")
DFFKE_10 = ("resnet18", "resnet34", "resnet50", "googlenet", "efficientnet-v2-s", *DFFKE_5[1:], "vit-tiny")
FEDFREE_8 = ("cnn-fedfree", *RESNETS_FEDVTC, "googlenet", "mobilenet-v2")
INCO_STAGE = ("resnet10", "resnet14", "resnet18", "resnet22", "resnet26")
TINY_LEVELS = ((0.5, (2,)), (0.75, (2, 4)), (1.0, (2, 4, 6)))  # width and exits of ScaleFL's levels
TABLE = ("tiny-table-mlp", "tiny-table-resnet", "tiny-table-wide", "tiny-table-transformer")
SERIES = ("tiny-series-cnn", "tiny-series-tcn", "tiny-series-gru", "tiny-series-transformer")
TEXT = ("tiny-text-bag", "tiny-text-cnn", "tiny-text-gru", "tiny-text-transformer")
HTC4_HEADS = (None, "relu-512", "relu-256", "relu-128")
COMMON_WIDTH = 512  # feature width in FedL2G's and DFFKE's groups


def _unpooled(*names: str) -> tuple[ModelSpec, ...]:
    """Return specs with unpooled features and the image stem, which the papers use even at 32 pixels."""
    return tuple(ModelSpec(name, stem="image") for name in names)


def _pooled(*names: str) -> tuple[ModelSpec, ...]:
    """Return specs with the image stem and features pooled to the common width."""
    return tuple(ModelSpec(name, stem="image", feature_dim=COMMON_WIDTH) for name in names)


def _dffke(*names: str) -> tuple[ModelSpec, ...]:
    """Return DFFKE's specs. Its images have 128 pixels; the ResNets pool them to 32 and have the small stem."""
    return tuple(
        ModelSpec(name, stem="small", pool_input=32, feature_dim=COMMON_WIDTH)
        if name.startswith("resnet")
        else ModelSpec(name, feature_dim=COMMON_WIDTH)
        for name in names
    )


def _with_heads(names: tuple[str, ...]) -> tuple[ModelSpec, ...]:
    """Return specs with the four heads assigned round-robin. Every name and every head occurs."""
    length = max(len(names), len(HTC4_HEADS))
    return tuple(
        ModelSpec(
            names[i % len(names)],
            stem="image",
            feature_dim=COMMON_WIDTH,
            head=HTC4_HEADS[i % len(HTC4_HEADS)],
        )
        for i in range(length)
    )


def _widths(name: str, *widths: float, stem: str = "auto") -> tuple[ModelSpec, ...]:
    """Return specs of one architecture at several widths."""
    return tuple(ModelSpec(name, width=width, stem=stem) for width in widths)


_CNN4 = ModelSpec("cnn4", feature_dim=COMMON_WIDTH)
_GROUPS = (
    ModelGroup("htfe2", _pooled(*HTFE2)),
    ModelGroup("htfe3", _pooled(*HTFE3)),
    ModelGroup("htfe4", _pooled(*HTFE4)),
    ModelGroup("htfe8", _pooled(*HTFE8)),
    ModelGroup("htfe9", _pooled(*HTFE9)),
    ModelGroup(
        "htm10",
        _pooled(*HTFE8)
        + tuple(ModelSpec(n, feature_dim=COMMON_WIDTH, head="tanh-768") for n in ("vit-b-16", "vit-b-32")),
    ),
    ModelGroup("dffke-1", _dffke("resnet18")),
    ModelGroup("dffke-2", _dffke("resnet18", "mobilenet-v3-large")),
    ModelGroup("dffke-5", _dffke(*DFFKE_5)),
    ModelGroup("dffke-10", _dffke(*DFFKE_10)),
    ModelGroup("fedfree-8", _unpooled(*FEDFREE_8), server=ModelSpec("cnn-fedfree")),
    ModelGroup("fedvtc-5", _unpooled(*RESNETS_FEDVTC)),
    ModelGroup("inco-stage", _unpooled(*INCO_STAGE)),
    ModelGroup("inco-layer", tuple(ModelSpec(f"vit-s-{q}") for q in range(8, 13))),
    ModelGroup("inco-width", _widths("resnet26", 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, stem="image")),
    ModelGroup("htfe8-htc4", _with_heads(HTFE8), auxiliary=_CNN4),
    ModelGroup("res34-htc4", _with_heads(("resnet34",)), auxiliary=_CNN4),
    ModelGroup("tiny4", tuple(ModelSpec(n) for n in ("tiny-cnn", "tiny-resnet", "tiny-mobile", "tiny-mlp"))),
    ModelGroup("tiny-resnets", tuple(ModelSpec(f"tiny-{n}") for n in INCO_STAGE)),
    ModelGroup("tiny-resnets3", tuple(ModelSpec(f"tiny-{n}") for n in INCO_STAGE[:3])),
    ModelGroup("tiny-vits", tuple(ModelSpec(f"tiny-vit-{q}") for q in range(2, 7))),
    ModelGroup("tiny-widths", _widths("tiny-resnet-wide", 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1)),
    ModelGroup("tabular4", tuple(ModelSpec(name) for name in TABLE)),
    ModelGroup("series4", tuple(ModelSpec(name) for name in SERIES)),
    ModelGroup("text4", tuple(ModelSpec(name) for name in TEXT)),
    ModelGroup("tiny-exits", tuple(ModelSpec("tiny-resnet-wide", width=w, exits=e) for w, e in TINY_LEVELS)),
)
GROUPS = {group.name: group for group in _GROUPS}


def model_group(name: str) -> ModelGroup:
    """Return the group of this name; raise InputError if there is none."""
    if name not in GROUPS:
        raise InputError(f"unknown model group '{name}'; {nearest(name, GROUPS)}")
    return GROUPS[name]


def group(name: str) -> tuple[ModelSpec, ...]:
    """Return the members of a group, in round-robin order."""
    return model_group(name).members


def group_names() -> list[str]:
    """Return the names of all groups."""
    return list(GROUPS)
