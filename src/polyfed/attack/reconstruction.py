"""Run the attack on one client of a run: train the attacker, reconstruct images, score and draw them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polyfed.attack import target as targets
from polyfed.attack.attacker import Decoder, Protect, train
from polyfed.attack.image_similarity import psnr, ssim
from polyfed.core import rng
from polyfed.core.client import Client
from polyfed.errors import InputError
from polyfed.guards.clipping import clip_rows
from polyfed.guards.protections import Protection
from polyfed.guards.sensitivity import measured_sensitivity

STEPS = 1000
MAX_COLUMNS = 10  # images in the grid
THREAT_MODEL = (
    "The attacker has the client's model, images of the same kind that are not the client's (the test set), and "
    "knows how fields are protected."
)


@dataclass(frozen=True)
class Reconstruction:
    """The images that an attacker obtains with some knowledge, one for each target image."""

    name: str
    images: Tensor

    def scores(self, targets: Tensor) -> dict[str, float]:
        return {"psnr": float(psnr(self.images, targets).mean()), "ssim": float(ssim(self.images, targets).mean())}


@dataclass(frozen=True)
class AttackResult:
    """The result of an attack: its settings and scores, the target images and their reconstructions."""

    report: dict[str, Any]
    target_images: Tensor
    reconstructions: tuple[Reconstruction, ...]


def attack(
    path: Path, client: str | None = None, field: str | None = None, steps: int = STEPS, *, trust: bool = False
) -> AttackResult:
    """Attack a client of a finished run; by default, the first client whose uploads were recorded."""
    folder, federation = targets.load_run(path, trust=trust)
    name = targets.choose_client(federation, client, path)
    if federation.global_test is None:
        raise InputError(
            f"the attacker trains on the test set of the dataset, and {federation.config.data.dataset} has none"
        )
    victim = federation.make_client(name)
    victim.seed = federation.seed
    protected = {} if federation.guard is None else {one.field: one for one in federation.guard.protections}
    target = targets.find_target(folder, victim, field, protected, federation.method)
    protection = protected.get(target.field)
    # clipping of single samples, before the mean over a class
    clip = None if protection is None or protection.bound is None else protection.clip
    width = target.rows.shape[1]
    generator = rng.generator(federation.seed, "attack", name, target.field)
    rows, images = targets.auxiliary_data(victim, federation.global_test, width, target.group_sizes, generator)
    clipped = rows
    if clip is not None:
        same = rng.generator(federation.seed, "attack", name, target.field)
        clipped, _ = targets.auxiliary_data(victim, federation.global_test, width, target.group_sizes, same, clip)

    def reconstruct(protect: Protect, uploaded: Tensor, rows: Tensor) -> Tensor:
        with rng.seeded(federation.seed, "attack", name, target.field):
            decoder = Decoder(rows.shape[1], federation.shape)
        return train(decoder, rows, images, protect, steps, generator).reconstruct(uploaded)

    reconstructions = [
        Reconstruction("mean image", images.mean(0, keepdim=True).expand_as(target.images)),
        Reconstruction("class mean image", targets.class_mean_images(federation.global_test, target.labels)),
    ]
    if protection is not None:
        unprotected = reconstruct(lambda rows, _: rows, target.clean_rows, rows)
        reconstructions.append(Reconstruction("upload without noise", unprotected))
    protect = _protect(protection, victim, target) if protection is not None else (lambda rows, _: rows)
    reconstructions.append(Reconstruction("upload", reconstruct(protect, target.rows, clipped)))
    cosine = F.cosine_similarity(target.rows.double(), target.clean_rows.double(), dim=1).mean()
    report = {
        "client": name,
        "field": target.field,
        "round": target.round,
        "rows": len(target.rows),
        "samples_per_row": [min(target.group_sizes), max(target.group_sizes)],
        "model": target.model,
        "protected": protection is not None,
        "cosine": float(cosine),
        "threat_model": THREAT_MODEL,
        "steps": steps,
        "scores": {one.name: one.scores(target.images) for one in reconstructions},
    }
    return AttackResult(report, target.images, tuple(reconstructions))


def _protect(protection: Protection, victim: Client, target: targets.Target) -> Protect:
    """Return a function that protects the attacker's own rows as the client protects its rows."""
    sigma = protection.sigma
    if sigma is None:
        sigma = protection.multiplier * measured_sensitivity(victim, protection.field, target.rows.shape[1], "attack")
    std, rows_per_unit = sigma, len(target.rows) if protection.unit == "message" else 1

    def protect(rows: Tensor, generator: torch.Generator) -> Tensor:
        if protection.clip is not None:
            # if the whole message is clipped, assume that its norm is spread evenly over its rows
            rows = clip_rows(rows, protection.clip / rows_per_unit**0.5)
        return rows + std * torch.randn(rows.shape, generator=generator)

    return protect


def draw(result: AttackResult, path: Path) -> None:
    """Write a grid of images: a column per target image, a row per reconstruction."""
    from matplotlib.figure import Figure

    count = len(result.target_images)
    chosen = torch.arange(min(MAX_COLUMNS, count)) * count // min(MAX_COLUMNS, count)
    lines = [("client's image", result.target_images), *((one.name, one.images) for one in result.reconstructions)]
    figure = Figure(figsize=(0.7 * len(chosen) + 1.4, 0.75 * len(lines)), layout="constrained")
    grid = figure.subplots(len(lines), len(chosen), squeeze=False)
    for (name, images), row in zip(lines, grid, strict=True):
        for axes, index in zip(row, chosen.tolist(), strict=True):
            image = images[index].clamp(0, 1).permute(1, 2, 0).numpy()
            axes.imshow(image[..., 0] if image.shape[2] == 1 else image, cmap="gray", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"the image grid cannot be written to {path}: {error}") from None
