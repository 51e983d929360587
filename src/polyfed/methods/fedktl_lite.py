"""FedKTL-lite: FedKTL without a pretrained image generator.

Zhang, Liu, Hua, Cao; CVPR 2024, with a stand-in for the generator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from polyfed.core import Method, Server, register, rng
from polyfed.errors import InputError
from polyfed.methods.fedktl.method import FedKTL
from polyfed.models.generators import RandomConvGenerator, TextureGenerator

STAND_INS = {
    "random": "an untrained network; no pretrained generator, not comparable with published FedKTL numbers",
    "texture": "procedural textures; no pretrained generator, not comparable with published FedKTL numbers",
    "trained": "a generator of the user; not comparable with published FedKTL numbers",
}


@register("fedktl-lite")
@dataclass(frozen=True)
class FedKTLLite(FedKTL):
    """FedKTL-lite: FedKTL with a stand-in for its pretrained generator; not comparable with published numbers.

    Clients cannot learn anything from an untrained network or from a formula for textures. With these stand-ins the
    method measures the effect of its simplex and margin, and the cost of the regression to latents. Every run records
    `faithful: false` and the stand-in. `generator: trained` uses a generator of your own, without a checksum. Clients
    are measured with the models that they have trained. Results: docs/leaderboard.md.
    """

    source: str = ""  # for `trained`: Python file whose build() returns the generator
    checkpoint: str = ""  # for `trained`: weights of the generator, a safetensors file
    sha256: str = ""  # for `trained`: checksum of the checkpoint; checked if given
    pretraining: str = ""  # for `trained`: what the generator was trained on; no client may hold this data
    latent_width: int = 64  # H, size of a latent
    generator: Literal["random", "texture", "trained"] = "random"  # stand-in for the pretrained generator

    verdict = "Above local training in short runs, by its classifier and not its images; below it when tuned."

    def __post_init__(self) -> None:
        Method.__post_init__(self)  # FedKTL's own check requires a trained generator
        for field in ("source", "checkpoint", "pretraining"):
            if self.generator == "trained" and not getattr(self, field):
                raise InputError(f"method.{field} is empty, but method.generator is 'trained', which needs it")

    def generator_record(self) -> dict[str, str | bool]:
        stand_in = f"{self.generator}: {STAND_INS[self.generator]}"
        trained = {"sha256": self.sha256, "pretraining": self.pretraining} if self.generator == "trained" else {}
        return {"faithful": False, "substitution": stand_in, **trained}

    def load_generator(self, server: Server) -> nn.Module:
        with rng.seeded(server.seed, "generator"):
            if self.generator == "trained":
                return super().load_generator(server)
            kind = RandomConvGenerator if self.generator == "random" else TextureGenerator
            return kind(self.latent_width).eval().requires_grad_(False).to(server.device)
