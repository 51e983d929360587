"""Image generators: a trained one from the user, and two small ones that contain no knowledge of any data.

A generator is a module that maps latents (N, `latent_width`) to images (N, channels, height, width) in [0, 1]. It may
have a method `draw(count, stream)` that samples latents; the default is standard normal.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
from pathlib import Path

import safetensors
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.errors import InputError

SIZE = 32  # height and width of the images of the small generators
PER_TEXTURE = 8  # entries of a latent per texture


class RandomConvGenerator(nn.Module):
    """Transposed convolutions with random weights: images without any knowledge of data."""

    def __init__(self, latent_width: int) -> None:
        super().__init__()
        self.latent_width = latent_width
        self.layers = nn.Sequential(
            nn.Linear(latent_width, 64 * 4 * 4),
            nn.ReLU(),
            nn.Unflatten(1, (64, 4, 4)),
            nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 3, 4, stride=2, padding=1),
        )
        for module in self.modules():
            # with stride 2 and kernel size 4, every output pixel depends on 4 input pixels per channel
            if isinstance(module, nn.ConvTranspose2d):
                nn.init.normal_(module.weight, std=math.sqrt(2 / (4 * module.in_channels)))
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=math.sqrt(2 / module.in_features))

    def forward(self, latents: Tensor) -> Tensor:
        return (torch.tanh(self.layers(latents)) + 1) / 2


class TextureGenerator(nn.Module):
    """Coloured waves inside soft spots, computed by a formula from the latent: no weights, no data."""

    def __init__(self, latent_width: int) -> None:
        super().__init__()
        if latent_width < PER_TEXTURE or latent_width % PER_TEXTURE:
            raise InputError(
                f"method.latent_width is {latent_width}; expected a multiple of {PER_TEXTURE}, such as 64"
            )
        self.latent_width = latent_width

    def forward(self, latents: Tensor) -> Tensor:
        parts = latents.reshape(len(latents), -1, PER_TEXTURE, 1, 1)
        across, down, phase, row, column, *colour = parts.unbind(2)
        grid = torch.linspace(-1, 1, SIZE, device=latents.device)
        x, y = grid[None, None, None, :], grid[None, None, :, None]
        waves = torch.sin(math.pi * (2 * across * x + 2 * down * y + phase))
        spots = torch.exp(-2 * ((x - torch.tanh(column)).square() + (y - torch.tanh(row)).square()))
        painted = torch.stack([(waves * spots * c).sum(1) for c in colour], 1)
        return torch.sigmoid(painted)


def load_generator(source: str, checkpoint: str, *, latent_width: int, sha256: str = "") -> nn.Module:
    """Build the module with `build()` from the file `source`, load its safetensors weights, and freeze it."""
    code, weights = Path(source).expanduser(), Path(checkpoint).expanduser()
    for field, path in (("source", code), ("checkpoint", weights)):
        if not path.is_file():
            raise InputError(f"method.{field} is '{path}', but there is no such file")
    if sha256 and (actual := checksum(weights)) != sha256.lower():
        raise InputError(f"method.sha256 is '{sha256}', but {weights.name} has {actual}")
    generator = _build(code)
    if getattr(generator, "latent_width", None) != latent_width:
        actual_width = getattr(generator, "latent_width", "missing")
        raise InputError(
            f"method.latent_width is {latent_width}, but latent_width of {code.name}'s generator is {actual_width}"
        )
    try:
        generator.load_state_dict(safetensors.torch.load_file(weights), strict=True)
    except (safetensors.SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"method.checkpoint '{weights.name}' does not fit {code.name}: {reason}") from None
    generator.eval().requires_grad_(False)
    _check_images(generator, code.name)
    return generator


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def draw_latents(generator: nn.Module, count: int, stream: torch.Generator) -> Tensor:
    """Sample latents with the generator's own `draw`, or from a standard normal distribution."""
    draw = getattr(generator, "draw", None)
    if draw is None:
        return torch.randn(count, int(generator.latent_width), generator=stream)  # type: ignore[arg-type]
    with torch.no_grad():
        latents: Tensor = draw(count, stream)
    return latents.detach().cpu()  # copied to a device together with those of other steps


def resized(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return images of another size, in grey if the shape has one channel."""
    channels, height, width = shape
    if channels != images.shape[1]:
        images = images.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    if (height, width) != images.shape[2:]:
        images = F.interpolate(images, (height, width), mode="bilinear", antialias=True, align_corners=False)
    return images.clamp(0, 1).contiguous()


def _build(code: Path) -> nn.Module:
    """Run the user's file and call its `build()`. The file is trusted, like a file under `imports`."""
    spec = importlib.util.spec_from_file_location(f"polyfed_generator_{code.stem}", code)
    if spec is None or spec.loader is None:
        raise InputError(f"method.source is '{code}', which is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        build = getattr(module, "build", None)
        if not callable(build):
            raise InputError(f"method.source '{code.name}' has no function build() that returns the generator")
        generator = build()
    except InputError:
        raise
    except Exception as error:  # the user's file may raise anything
        raise InputError(f"method.source '{code.name}' fails with {type(error).__name__}: {error}") from error
    if not isinstance(generator, nn.Module):
        raise InputError(f"build() of {code.name} returned a {type(generator).__name__}; expected a torch.nn.Module")
    return generator


def _check_images(generator: nn.Module, name: str) -> None:
    """Raise InputError if the generator does not return images in [0, 1]."""
    with torch.no_grad():
        latents = draw_latents(generator, 2, torch.Generator().manual_seed(0))
        images = generator(latents) if tuple(latents.shape) == (2, int(generator.latent_width)) else latents  # type: ignore[arg-type]
    shape = tuple(images.shape)
    if len(shape) != 4 or shape[0] != 2 or shape[1] not in (1, 3):
        raise InputError(
            f"the generator of {name} returned {shape} for two latents; expected images (2, 1 or 3, height, width)"
        )
    low, high = float(images.min()), float(images.max())
    if not (low >= -1e-3 and high <= 1 + 1e-3):  # NaN fails this test
        raise InputError(f"the generator of {name} returned pixels from {low:.3g} to {high:.3g}; expected 0 to 1")
