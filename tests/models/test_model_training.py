"""Every architecture takes a training step and evaluates, at every size it takes."""

from __future__ import annotations

import pytest
import torch
from tests.model_families import by_family
from tests.tiers import always_if
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.errors import InputError
from polyfed.models import ModelSpec, SplitModel, build
from polyfed.models.catalogue import ARCHITECTURES

IMAGE_MODELS = [name for name, architecture in ARCHITECTURES.items() if architecture.takes == "picture"]
SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64)]
ALWAYS = SHAPES[::2]


def seeded(spec: ModelSpec | str, shape: tuple[int, int, int], classes: int = 10) -> SplitModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return build(spec, shape=shape, classes=classes)


def images(count: int, shape: tuple[int, int, int]) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(3))


def takes(name: str, shape: tuple[int, int, int]) -> bool:
    return min(shape[1:]) >= ARCHITECTURES[name].smallest


def narrow(name: str) -> ModelSpec:
    """The tiny models as they are; the others at an eighth of their width, where a step costs milliseconds.

    Depth, strides, pooling and every layer's kind are those of the full model. Full widths are checked below on a
    smaller scale, and by the tables of parameter counts.
    """
    return ModelSpec(name, width=1.0 if name.startswith("tiny-") else 0.125)


def step(model: SplitModel, shape: tuple[int, int, int], batch: int) -> SplitModel:
    """One step of SGD, with dropout's draws fixed too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        loss = F.cross_entropy(model.train()(images(batch, shape)), torch.arange(batch) % 10)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    return model


@pytest.mark.parametrize(
    "shape",
    [pytest.param(shape, marks=always_if(shape in ALWAYS), id=str(shape)) for shape in SHAPES],
)
@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_trains_and_evaluates_at_every_size(name: str, shape: tuple[int, int, int]) -> None:
    if not takes(name, shape):
        side = ARCHITECTURES[name].smallest
        expected = rf"{name}.*{side}x{side} pixels or more; these have {shape[1]}x{shape[2]}"
        with pytest.raises(InputError, match=expected):
            build(name, shape=shape, classes=10)
        return
    model = seeded(narrow(name), shape)
    before = [p.detach().clone() for p in model.parameters()]
    step(model, shape, 10)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    changed = [not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)]
    assert sum(changed) > len(changed) / 2
    x = images(10, shape)
    with torch.no_grad():
        features = model.eval().features(x)
        logits = model(x)
        assert features.shape == (10, model.feature_dim) and logits.shape == (10, 10)
        assert torch.equal(model.head(features), logits)
        torch.testing.assert_close(model(x[:1]), logits[:1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", by_family(IMAGE_MODELS))
def test_a_step_is_the_same_twice(name: str) -> None:
    shape = (1, 16, 16)
    once, again = (step(seeded(narrow(name), shape), shape, 4).state_dict() for _ in range(2))
    for key, value in once.items():
        assert torch.equal(value, again[key]), key


@pytest.mark.parametrize("name", ["cnn4", "resnet18", "googlenet", "mobilenet-v2", "shufflenet-v2-x1.5", "vit-tiny"])
def test_families_train_a_step_at_full_width(name: str) -> None:
    model = seeded(name, (3, 32, 32))
    head = model.state_dict()["head.weight"].clone()
    step(model, (3, 32, 32), 2)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert not torch.equal(model.state_dict()["head.weight"], head)


@pytest.mark.parametrize("name", ["tiny-cnn", "tiny-mlp", "tiny-vit-2", "cnn4", "vit-tiny"])
def test_models_without_batchnorm_train_on_one_image(name: str) -> None:
    shape = (1, 16, 16)
    assert not seeded(name, shape).has_batchnorm
    step(seeded(name, shape), shape, 1)


@pytest.mark.parametrize("norm", ["group", "layer", "none"])
@pytest.mark.parametrize(
    "name", ["tiny-resnet", "tiny-mobile", "resnet10", "googlenet", "mobilenet-v3-small", "shufflenet-v2-x1.5"]
)
def test_other_norms_train_on_one_image(name: str, norm: str) -> None:
    model = seeded(ModelSpec(name, norm=norm, width=0.5), (1, 16, 16))
    assert not model.has_batchnorm
    F.cross_entropy(model(images(1, (1, 16, 16))), torch.tensor([3])).backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad for p in model.parameters()]
    assert all(g is not None and g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("name", [n for n in IMAGE_MODELS if ARCHITECTURES[n].smallest > 1])
def test_smallest_input_is_the_smallest(name: str) -> None:
    side = ARCHITECTURES[name].smallest
    model = seeded(narrow(name), (1, side, side))
    assert model(images(4, (1, side, side))).shape == (4, 10)
    with pytest.raises(InputError, match=f"{side}x{side} pixels or more; these have {side}x{side - 1}"):
        build(name, shape=(1, side, side - 1), classes=10)
    # What the check protects from: the layers themselves cannot take one pixel less.
    with pytest.raises(RuntimeError):
        model(images(4, (1, side - 1, side - 1)))


@pytest.mark.parametrize("name", [n for n in IMAGE_MODELS if ARCHITECTURES[n].smallest == 1])
def test_the_others_take_odd_small_and_oblong_images(name: str) -> None:
    assert seeded(narrow(name), (2, 3, 9))(images(2, (2, 3, 9))).shape == (2, 10)


def test_batchnorm_is_found_and_seeds_decide_the_weights() -> None:
    assert seeded("tiny-resnet", (1, 8, 8)).has_batchnorm
    first, second = seeded("tiny-resnet", (1, 8, 8)), seeded("tiny-resnet", (1, 8, 8))
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key])
        assert value.data_ptr() != second.state_dict()[key].data_ptr()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        other = build("tiny-resnet", shape=(1, 8, 8), classes=10)
    assert not torch.equal(first.state_dict()["head.weight"], other.state_dict()["head.weight"])


def test_no_layer_works_in_place() -> None:
    for name in IMAGE_MODELS:
        with torch.device("meta"):
            model = build(name, shape=(3, 32, 32), classes=10)
        assert not [m for m in model.modules() if getattr(m, "inplace", False)], name


def test_gradients_reach_the_pixels_through_a_functional_call() -> None:
    model = seeded("tiny-mobile", (1, 8, 8)).eval()
    x = images(4, (1, 8, 8)).requires_grad_()
    weights = {k: v.detach() for k, v in model.state_dict().items()}
    torch.func.functional_call(model, weights, (x,)).sum().backward()
    assert x.grad is not None and x.grad.abs().max() > 0
    assert isinstance(model.head, nn.Linear) and model.head.weight.grad is None
