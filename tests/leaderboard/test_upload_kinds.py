"""The kinds of information that methods declare are those of the fields that their steps upload."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.small import SMALL

from polyfed import api, catalogue
from polyfed.catalogue.upload_kinds import PARTS, UPLOAD_KINDS
from polyfed.core.schema import TableField, WeightsField
from polyfed.core.step import method_steps

# The kinds of every field of a reply, by method and field or by field alone. A new field needs an entry here.
KINDS: dict[str, tuple[str, ...]] = {
    "accuracy": ("training-statistics",),
    "ccvr.statistics": ("class-means", "class-statistics", "counts"),
    "channels": ("image-size",),
    "control": ("gradients",),
    "decoder": ("decoder",),
    "deviation": ("class-statistics",),
    "directions": ("class-means", "counts"),
    "embeddings": ("embeddings",),
    "epochs": ("training-statistics",),
    "extractor": ("shared-model",),
    "feddistill.outputs": ("class-outputs", "counts"),
    "fedgen.labels": ("counts",),
    "fedkd.update": ("shared-model",),
    "fedlatent.statistics": ("class-means", "class-statistics", "counts"),
    "gradient": ("gradients",),
    "head": ("head",),
    "height": ("image-size",),
    "labels": ("labels",),
    "layers": ("weights", "training-statistics"),
    "means": ("class-means", "counts"),
    "meme": ("shared-model",),
    "memory": ("outputs",),
    "model": ("weights",),
    "moments": ("class-means", "class-statistics"),
    "normaliser": ("training-statistics",),
    "not_finite": ("training-statistics",),
    "outputs": ("outputs",),
    "pixels": ("pixel-statistics",),
    "present": ("counts",),
    "projection": ("weights",),
    "prototypes": ("class-means",),
    "proxy": ("shared-model",),
    "samples": ("counts",),
    "statistics": ("weights",),
    "steps": ("training-statistics",),
    "targets": ("outputs",),
    "width": ("image-size",),
}
RUN = ("fedproto", "fedlatent", "dffke", "fedfree", "fedl2g", "lg-fedavg", "fml", "feddistill", "local")


def kinds_of(method: str, field: str) -> tuple[str, ...]:
    return KINDS.get(f"{method}.{field}") or KINDS[field]


@pytest.mark.parametrize("name", catalogue.methods())
def test_declared_kinds_are_those_of_the_uploaded_fields(name: str) -> None:
    info = catalogue.methods()[name]
    method = catalogue.load(info.name)
    fields = {
        field: kind
        for messages in method_steps(object.__new__(method)).values()
        for field, kind in messages.up.items()
    }
    uploaded = {kind for field in fields for kind in kinds_of(name, field)}
    uploaded |= {"counts" for kind in fields.values() if isinstance(kind, TableField) and kind.counts}
    uploaded |= {
        kind.of if kind.of == "head" else "weights" for kind in fields.values() if isinstance(kind, WeightsField)
    }
    assert set(info.upload_kinds) == uploaded
    assert set(info.upload_kinds) <= set(UPLOAD_KINDS)
    assert info.upload_kinds == method.sends.kinds


@pytest.mark.parametrize("name", RUN)
def test_what_leaves_a_client_is_declared(name: str, tmp_path: Path) -> None:
    result = api.run(
        "demo",
        method={"name": name, **SMALL.get(name, {})},
        clients=2,
        rounds=1,
        data={"dataset": "digits", "limit": 60, "test_limit": 20},
        models={"group": ["tiny-mlp"]},
        engine={"name": "serial"},
        out=tmp_path,
        progress=False,
    )
    left = {kind for field in result["bytes"]["by_field"]["up"] for kind in kinds_of(name, field)}
    assert left <= set(catalogue.methods()[name].upload_kinds)
    assert bool(left) == (name != "local")


def test_a_part_belongs_to_a_kind() -> None:
    assert set(PARTS) | set(PARTS.values()) <= set(UPLOAD_KINDS)
