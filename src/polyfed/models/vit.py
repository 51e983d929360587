"""Vision transformers: DFFKE's tiny one, InCo's ViT-S of 8 to 12 blocks, ViT-B, and CPU-sized ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.models.blocks import Trunk, scaled
from polyfed.models.spec import ModelSpec


@dataclass(frozen=True)
class Sizes:
    patch: int
    dim: int
    blocks: int
    heads: int
    mlp: int


TABLE = {
    "vit-tiny": Sizes(patch=16, dim=192, blocks=4, heads=16, mlp=768),
    **{f"vit-s-{q}": Sizes(patch=16, dim=384, blocks=q, heads=6, mlp=1536) for q in range(8, 13)},
    "vit-b-16": Sizes(patch=16, dim=768, blocks=12, heads=12, mlp=3072),
    "vit-b-32": Sizes(patch=32, dim=768, blocks=12, heads=12, mlp=3072),
}
TINY_DEPTHS = {f"tiny-vit-{q}": q for q in range(2, 7)}


class Attention(nn.Module):
    """Separate query, key and value layers, so that a slice inside each head is a slice of rows."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._by_head(layer(x)) for layer in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def _by_head(self, x: Tensor) -> Tensor:
        """(N, tokens, dim) to (N, heads, tokens, dim of a head)."""
        batch, tokens, dim = x.shape
        return x.reshape(batch, tokens, self.heads, dim // self.heads).transpose(1, 2)


class Block(nn.Module):
    """Attention and a two-layer network, each after its norm and added to its input."""

    def __init__(self, dim: int, heads: int, mlp: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attention = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp), nn.GELU(), nn.Linear(mlp, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class VisionTransformer(Trunk):
    """Patches and a class token with learned positions, blocks, final norm; the class token is the feature.

    An image whose sides are not multiples of the patch is padded on the right and below, with what the input
    normalisation makes the mean.
    """

    spatial = False

    def __init__(self, spec: ModelSpec, shape: tuple[int, int, int], sizes: Sizes) -> None:
        super().__init__()
        # The number of heads stays, each gets narrower.
        dim = sizes.heads * scaled(sizes.dim // sizes.heads, spec.width)
        self.patch = sizes.patch
        tokens = -(-shape[1] // sizes.patch) * -(-shape[2] // sizes.patch)
        self.embed = nn.Conv2d(shape[0], dim, sizes.patch, stride=sizes.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, tokens + 1, dim), std=0.02))
        mlp = scaled(sizes.mlp, spec.width)
        self.blocks = nn.Sequential(*(Block(dim, sizes.heads, mlp) for _ in range(sizes.blocks)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.channels = dim
        self.apply(_initialise)

    def tokens(self, x: Tensor) -> Tensor:
        """What the first block gets: the class token and the patches, with their positions."""
        x = F.pad(x, (0, -x.shape[3] % self.patch, 0, -x.shape[2] % self.patch))
        patches = self.embed(x).flatten(2).transpose(1, 2)
        return torch.cat([self.class_token.expand(len(x), -1, -1), patches], dim=1) + self.positions

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.blocks(self.tokens(x)))[:, 0]
        return out


def _initialise(module: nn.Module) -> None:
    """Variances that keep the scale through the layers: a transformer barely starts from PyTorch's default."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def vit(spec: ModelSpec, shape: tuple[int, int, int]) -> Trunk:
    return VisionTransformer(spec, shape, TABLE[spec.name])


def tiny_vit(spec: ModelSpec, shape: tuple[int, int, int]) -> Trunk:
    """Up to 16 patches: 2 pixels each on 8x8 digits, 8 pixels on 32x32."""
    patch = max(1, -(-min(shape[1:]) // 4))
    return VisionTransformer(spec, shape, Sizes(patch=patch, dim=32, blocks=TINY_DEPTHS[spec.name], heads=4, mlp=32))
