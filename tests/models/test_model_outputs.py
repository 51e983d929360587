"""What comes out after every stage, compared with running the parts by hand."""

from __future__ import annotations

import pytest
import torch

from polyfed.core import rng
from polyfed.models import SplitModel, build
from polyfed.models.blocks import StridedPointwise
from polyfed.models.slicing import block_names
from polyfed.models.stage_outputs import stage_outputs


def made(name: str) -> SplitModel:
    with rng.seeded("outputs", name):
        return build(name, shape=(1, 8, 8), classes=4).eval()


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("tiny-resnet14", ["stage 1", "stage 2", "stage 3", "stage 4", "features"]),
        ("tiny-vit-3", ["block 1", "block 2", "block 3", "features"]),
        ("tiny-mlp", ["features"]),
    ],
)
def test_every_stage_or_block_and_the_features(name: str, names: list[str]) -> None:
    model = made(name)
    x = torch.rand(5, 1, 8, 8, generator=rng.generator("pictures"))
    found = stage_outputs(model, x)
    assert list(found) == names
    assert all(rows.ndim == 2 and len(rows) == 5 and not rows.requires_grad for rows in found.values())
    with torch.no_grad():
        assert torch.equal(found["features"], model.features(x))
    assert not any(module._forward_hooks for module in model.modules())


def test_a_stage_ends_with_its_last_block() -> None:
    model = made("tiny-resnet14")
    x = torch.rand(3, 1, 8, 8, generator=rng.generator("pictures"))
    found = stage_outputs(model, x)
    trunk = model.backbone.get_submodule("trunk")
    parts = dict(model.backbone.named_children())
    for before in ("normalise", "pool_input"):
        x = parts[before](x) if before in parts else x
    x = trunk.get_submodule("stem")(x)
    for number, blocks in enumerate(block_names(model), 1):
        for block in blocks:
            x = model.get_submodule(block)(x)
        assert torch.equal(found[f"stage {number}"], x.detach().flatten(1))


@pytest.mark.parametrize("size", [1, 7, 8])
def test_a_strided_pointwise_convolution_is_a_convolution(size: int) -> None:
    with rng.seeded("pointwise"):
        own, plain = (kind(3, 5, 1, stride=2) for kind in (StridedPointwise, torch.nn.Conv2d))
    plain.load_state_dict(own.state_dict())
    x = torch.rand(2, 3, size, size, generator=rng.generator("pictures"))  # contiguous: torch's own is right there
    for layer in (own, plain):
        layer(x).square().sum().backward()
    assert torch.allclose(own(x), plain(x), atol=1e-6)
    assert torch.allclose(own.weight.grad, plain.weight.grad, atol=1e-5)  # type: ignore[arg-type]
