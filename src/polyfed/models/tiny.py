"""CPU-sized networks: four different architectures with one feature width, and narrow ResNets that can be sliced."""

from __future__ import annotations

from torch import Tensor, nn

from polyfed.models.blocks import ConvNormAct, Trunk, scaled
from polyfed.models.resnet import DEPTHS, Depth, ResNet, basic_block, image_stem, small_stem
from polyfed.models.spec import ModelSpec

FEATURES = 64  # common feature width of the four architectures
NARROW_CHANNELS = (8, 12, 16, 20)  # ResNets for depth slicing: 26 layers have fewer than 50,000 parameters
WIDE_CHANNELS = (8, 16, 32)  # ResNet for width slicing: all are divisible by four
NARROW_DEPTHS = {
    f"tiny-{name}": DEPTHS[name] for name in ("resnet10", "resnet14", "resnet18", "resnet22", "resnet26")
}
WIDE_DEPTH = Depth((2, 2, 2))


def _first_stride(shape: tuple[int, int, int]) -> int:
    """Return the stride of the first convolution: 2 from 16 pixels on, to save CPU time."""
    return 2 if min(shape[1:]) >= 16 else 1


class TinyCNN(Trunk):
    """Two convolutions with pooling and one fully connected layer, without norms."""

    spatial = False

    def __init__(self, spec: ModelSpec, shape: tuple[int, int, int]) -> None:
        super().__init__()
        first, second = scaled(16, spec.width), scaled(32, spec.width)
        self.channels = scaled(FEATURES, spec.width)
        self.layers = nn.Sequential(
            nn.Conv2d(shape[0], first, 3, stride=_first_stride(shape), padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.Conv2d(first, second, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(2),
            nn.Flatten(),
            nn.Linear(4 * second, self.channels),
            nn.ReLU(),
        )
        self.apply(_init_he)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class TinyMLP(Trunk):
    """Two fully connected layers on the image, average-pooled to 8x8 so that any input size fits."""

    spatial = False

    def __init__(self, spec: ModelSpec, shape: tuple[int, int, int]) -> None:
        super().__init__()
        hidden = scaled(128, spec.width)
        self.channels = scaled(FEATURES, spec.width)
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(8),
            nn.Flatten(),
            nn.Linear(64 * shape[0], hidden),
            nn.ReLU(),
            nn.Linear(hidden, self.channels),
            nn.ReLU(),
        )
        self.apply(_init_he)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class TinyMobile(Trunk):
    """A stem and two depthwise separable convolutions. Each of them halves height and width."""

    def __init__(self, spec: ModelSpec, shape: tuple[int, int, int]) -> None:
        super().__init__()
        inputs = scaled(32, spec.width)
        self.stem = ConvNormAct(shape[0], inputs, 3, norm=spec.norm, stride=2)
        self.blocks = nn.Sequential()
        for base in (48, FEATURES):
            outputs = scaled(base, spec.width)
            self.blocks.append(
                nn.Sequential(
                    ConvNormAct(inputs, inputs, 3, norm=spec.norm, stride=2, groups=inputs, act=None),
                    ConvNormAct(inputs, outputs, 1, norm=spec.norm),
                )
            )
            inputs = outputs
        self.channels = inputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks(self.stem(x))
        return out


class TinyResNet(Trunk):
    """A stem, one residual block, and a strided convolution to the common feature width."""

    def __init__(self, spec: ModelSpec, shape: tuple[int, int, int]) -> None:
        super().__init__()
        inner = scaled(24, spec.width)
        self.channels = scaled(FEATURES, spec.width)
        self.stem = nn.Sequential(
            ConvNormAct(shape[0], inner, 3, norm=spec.norm, stride=_first_stride(shape)),
            nn.MaxPool2d(2, ceil_mode=True),
        )
        self.block = basic_block(inner, inner, stride=1, norm=spec.norm)
        self.widen = ConvNormAct(inner, self.channels, 3, norm=spec.norm, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.widen(self.block(self.stem(x)))
        return out


def _init_he(module: nn.Module) -> None:
    """Apply He initialisation. Without norms, PyTorch's default needs several times as many steps at lr 0.01."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _build_resnet(spec: ModelSpec, shape: tuple[int, int, int], depth: Depth, channels: tuple[int, ...]) -> ResNet:
    """Build a ResNet with these channels per stage."""
    first = scaled(channels[0], spec.width)
    if spec.stem == "image":
        stem = image_stem(shape[0], first, spec.norm)
    else:
        stem = small_stem(shape[0], first, spec.norm, 1 if spec.stem == "small" else _first_stride(shape))
    return ResNet(stem, depth, channels, width=spec.width, norm=spec.norm)


def narrow_resnet(spec: ModelSpec, shape: tuple[int, int, int]) -> Trunk:
    """Build a narrow ResNet with the block counts of ResNet10 to ResNet26, for depth slicing."""
    return _build_resnet(spec, shape, NARROW_DEPTHS[spec.name], NARROW_CHANNELS)


def wide_resnet(spec: ModelSpec, shape: tuple[int, int, int]) -> Trunk:
    """Build a ResNet of three stages with two blocks each, for width slicing."""
    return _build_resnet(spec, shape, WIDE_DEPTH, WIDE_CHANNELS)
