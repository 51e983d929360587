"""Image generators: a user's own, trained elsewhere, and two small ones that know nothing of any data.

A generator is a module that turns latents (N, `latent_width`) into images (N, channels, height, width) in [0, 1]. It
may have `draw(count, stream)`, which gives latents that it was made for; without it they are standard normal.
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

SIZE = 32  # pixels a side of what the small generators make
PER_TEXTURE = 8  # numbers of a latent that shape one texture


class RandomConvGenerator(nn.Module):
    """Transposed convolutions with the weights they were made with: images without any knowledge in them."""

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
            # a pixel that a layer of stride 2 and size 4 makes is reached by 4 pixels of every channel
            if isinstance(module, nn.ConvTranspose2d):
                nn.init.normal_(module.weight, std=math.sqrt(2 / (4 * module.in_channels)))
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=math.sqrt(2 / module.in_features))

    def forward(self, latents: Tensor) -> Tensor:
        return (torch.tanh(self.layers(latents)) + 1) / 2


class TextureGenerator(nn.Module):
    """Coloured waves inside soft spots, drawn by a formula that the latent controls: no weights, no data."""

    def __init__(self, latent_width: int) -> None:
        super().__init__()
        if latent_width < PER_TEXTURE or latent_width % PER_TEXTURE:
            raise InputError(
                f"method.latent_width is {latent_width}; textures need a multiple of {PER_TEXTURE}, such as 64"
            )
        self.latent_width = latent_width

    def forward(self, latents: Tensor) -> Tensor:
        parts = latents.reshape(len(latents), -1, PER_TEXTURE, 1, 1)
        across, down, phase, row, column, *colour = parts.unbind(2)
        grid = torch.linspace(-1, 1, SIZE)
        x, y = grid[None, None, None, :], grid[None, None, :, None]
        waves = torch.sin(math.pi * (2 * across * x + 2 * down * y + phase))
        spots = torch.exp(-2 * ((x - torch.tanh(column)).square() + (y - torch.tanh(row)).square()))
        painted = torch.stack([(waves * spots * c).sum(1) for c in colour], 1)
        return torch.sigmoid(painted)


def load_generator(source: str, checkpoint: str, *, latent_width: int, sha256: str = "") -> nn.Module:
    """The module that `build()` in the Python file `source` makes, with the weights of a safetensors file; frozen."""
    code, weights = Path(source).expanduser(), Path(checkpoint).expanduser()
    for field, path in (("source", code), ("checkpoint", weights)):
        if not path.is_file():
            raise InputError(f"method.{field} is '{path}', but there is no such file")
    if sha256 and (found := checksum(weights)) != sha256.lower():
        raise InputError(f"method.sha256 is '{sha256}', but {weights.name} has {found}")
    generator = _built(code)
    if getattr(generator, "latent_width", None) != latent_width:
        said = getattr(generator, "latent_width", "missing")
        raise InputError(
            f"method.latent_width is {latent_width}, but latent_width of {code.name}'s generator is {said}"
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
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def draw_latents(generator: nn.Module, count: int, stream: torch.Generator) -> Tensor:
    """Latents that the generator was made for."""
    own = getattr(generator, "draw", None)
    if own is None:
        return torch.randn(count, int(generator.latent_width), generator=stream)  # type: ignore[arg-type]
    with torch.no_grad():
        drawn: Tensor = own(count, stream)
    return drawn.detach()


def resized(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Images of another size, in grey where one channel is asked for."""
    channels, height, width = shape
    if channels != images.shape[1]:
        images = images.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    if (height, width) != images.shape[2:]:
        images = F.interpolate(images, (height, width), mode="bilinear", antialias=True, align_corners=False)
    return images.clamp(0, 1).contiguous()


def _built(code: Path) -> nn.Module:
    """What the user's file makes. It is run as it is: it is the user's own, like a file named under `imports`."""
    spec = importlib.util.spec_from_file_location(f"polyfed_generator_{code.stem}", code)
    if spec is None or spec.loader is None:
        raise InputError(f"method.source is '{code}', which is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        build = getattr(module, "build", None)
        if not callable(build):
            raise InputError(f"method.source '{code.name}' has no function build() that makes the generator")
        generator = build()
    except InputError:
        raise
    except Exception as error:  # the file is the user's: it may raise anything
        raise InputError(f"method.source '{code.name}' fails with {type(error).__name__}: {error}") from error
    if not isinstance(generator, nn.Module):
        raise InputError(f"build() of {code.name} gives a {type(generator).__name__}, a torch.nn.Module is needed")
    return generator


def _check_images(generator: nn.Module, name: str) -> None:
    with torch.no_grad():
        latents = draw_latents(generator, 2, torch.Generator().manual_seed(0))
        images = generator(latents) if tuple(latents.shape) == (2, int(generator.latent_width)) else latents  # type: ignore[arg-type]
    found = tuple(images.shape)
    if len(found) != 4 or found[0] != 2 or found[1] not in (1, 3):
        raise InputError(
            f"the generator of {name} gives {found} for two latents; images (2, 1 or 3, height, width) are needed"
        )
    low, high = float(images.min()), float(images.max())
    if not (low >= -1e-3 and high <= 1 + 1e-3):  # written so that NaN fails as well
        raise InputError(f"the generator of {name} gives pixels from {low:.3g} to {high:.3g}; from 0 to 1 is needed")
