"""Vision transformers: DFFKE's ViT-Tiny, InCo's ViT-S with 8 to 12 blocks, ViT-B, and CPU-sized ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.models.blocks import Trunk, scaled
from polyfed.models.spec import ModelSpec


@dataclass(frozen=True)
class Sizes:
    """Hyperparameters of a vision transformer."""

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
    """Multi-head self-attention. Query, key and value are separate layers, so slicing a head selects rows."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._split_heads(layer(x)) for layer in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return out

    def _split_heads(self, x: Tensor) -> Tensor:
        """Reshape (N, tokens, dim) to (N, heads, tokens, dim / heads)."""
        batch, tokens, dim = x.shape
        return x.reshape(batch, tokens, self.heads, dim // self.heads).transpose(1, 2)


class Block(nn.Module):
    """Pre-norm transformer block: self-attention and a two-layer MLP, both with residual connections."""

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
    """A vision transformer with learned position embeddings. Its feature is the class token after the final norm.

    If the image size is not a multiple of the patch size, the image is padded on the right and at the bottom with
    zeros, which is the mean after input normalisation.
    """

    spatial = False

    def __init__(self, spec: ModelSpec, shape: tuple[int, int, int], sizes: Sizes) -> None:
        super().__init__()
        # A smaller width makes each head narrower; the number of heads does not change.
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
        self.apply(_init_weights)

    def tokens(self, x: Tensor) -> Tensor:
        """Return the input of the first block: class token and patch embeddings, with position embeddings added."""
        x = F.pad(x, (0, -x.shape[3] % self.patch, 0, -x.shape[2] % self.patch))
        patches = self.embed(x).flatten(2).transpose(1, 2)
        return torch.cat([self.class_token.expand(len(x), -1, -1), patches], dim=1) + self.positions

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.blocks(self.tokens(x)))[:, 0]
        return out


def _init_weights(module: nn.Module) -> None:
    """Preserve the scale of activations. Training barely starts from PyTorch's default initialisation."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def vit(spec: ModelSpec, shape: tuple[int, int, int]) -> Trunk:
    """Build the vision transformer that the spec names."""
    return VisionTransformer(spec, shape, TABLE[spec.name])


def tiny_vit(spec: ModelSpec, shape: tuple[int, int, int]) -> Trunk:
    """Build a CPU-sized transformer with up to 16 patches: 2x2 pixels for 8x8 images, 8x8 for 32x32."""
    patch = max(1, -(-min(shape[1:]) // 4))
    return VisionTransformer(spec, shape, Sizes(patch=patch, dim=32, blocks=TINY_DEPTHS[spec.name], heads=4, mlp=32))
