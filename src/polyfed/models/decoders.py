"""Small decoders: four transposed convolutions from a flat latent to an image in [0, 1]."""

from __future__ import annotations

from torch import Tensor, nn

from polyfed.errors import InputError
from polyfed.models.blocks import make_norm

GROWTH = 4  # two layers double height and width


class TransposedDecoder(nn.Module):
    """A latent, reshaped to a map of a quarter of the image size, decoded to an image (sizes of FedVTC's table 6)."""

    def __init__(
        self, latent_map: tuple[int, int, int], image_channels: int, hidden: tuple[int, int, int], norm: str = "batch"
    ) -> None:
        super().__init__()
        first, second, third = hidden
        self.layers = nn.Sequential(
            nn.Unflatten(1, latent_map),
            *_layer(latent_map[0], first, norm, double=False),
            nn.LeakyReLU(0.01),
            *_layer(first, second, norm, double=True),
            nn.LeakyReLU(0.01),
            *_layer(second, third, norm, double=False),
            nn.LeakyReLU(0.01),
            *_layer(third, image_channels, norm, double=True),
            nn.Sigmoid(),
        )

    def forward(self, latents: Tensor) -> Tensor:
        images: Tensor = self.layers(latents)
        return images


def transposed_decoder(features: int, image: tuple[int, ...], norm: str = "batch") -> nn.Module:
    """Build a decoder from latents of `features` numbers to images of a shape, with channels by the image's size."""
    return TransposedDecoder(latent_map(features, image), image[0], hidden_channels(image), norm)


def hidden_channels(image: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the channels of the first three layers; the last one has those of the image (table 6 of FedVTC)."""
    side = max(image[1:])
    return (16, 32, 32) if side <= 28 else (32, 64, 64) if side <= 32 else (64, 64, 64)


def latent_map(features: int, image: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the shape in which the decoder reads flat features; raise InputError if they do not fit."""
    shown = "x".join(map(str, image))
    if len(image) != 3 or min(image) < 1 or image[1] % GROWTH or image[2] % GROWTH:
        raise InputError(f"images are {shown}; the decoder needs a height and width divisible by {GROWTH}")
    height, width = image[1] // GROWTH, image[2] // GROWTH
    channels, rest = divmod(features, height * width)
    if rest:
        usual = {7: 20, 8: 64, 16: 16}.get(height, 16)
        raise InputError(
            f"the models have {features} features; the decoder of {shown} images needs a multiple of "
            f"{height * width} (a map of {height}x{width}); set models.feature_map: "
            f"[{usual}, {height}, {width}]"
        )
    return channels, height, width


def _layer(inputs: int, outputs: int, norm: str, *, double: bool) -> tuple[nn.Module, nn.Module]:
    if double:
        return nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1), make_norm(norm, outputs)
    return nn.ConvTranspose2d(inputs, outputs, 3, stride=1, padding=1), make_norm(norm, outputs)
