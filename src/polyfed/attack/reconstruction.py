"""The attack on one client of a run: train the attacker, turn what left into pictures, score them, draw them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polyfed.attack import target as targets
from polyfed.attack.attacker import Decoder, Leak, train
from polyfed.attack.image_similarity import psnr, ssim
from polyfed.core import rng
from polyfed.core.client import Client
from polyfed.errors import InputError, nearest
from polyfed.guards.clipping import clip_rows
from polyfed.guards.protections import Protection
from polyfed.guards.sensitivity import measured_sensitivity

STEPS = 1000
SHOWN = 10  # pictures in the grid
THREAT = (
    "The attacker has the client's model, pictures of the same kind that are not the client's (the test set), and, "
    "where fields are protected, knows how."
)


@dataclass(frozen=True)
class Seen:
    """What came back of every picture."""

    name: str
    pictures: Tensor

    def scored(self, real: Tensor) -> dict[str, float]:
        return {"psnr": float(psnr(self.pictures, real).mean()), "ssim": float(ssim(self.pictures, real).mean())}


@dataclass(frozen=True)
class Outcome:
    """An attack that was tried: its facts and scores, and the pictures behind them."""

    facts: dict[str, Any]
    real: Tensor
    seen: tuple[Seen, ...]


def attack(path: Path, client: str | None = None, field: str | None = None, steps: int = STEPS) -> Outcome:
    """Attack a client of a finished run; without a name, the first whose replies were kept."""
    folder, federation = targets.run_of(path)
    kept = sorted(federation.recorded, key=lambda name: federation.positions[name])
    name = client if client is not None else (kept[0] if kept else federation.names[0])
    if name not in federation.positions:
        raise InputError(f"there is no client called '{name}' in {path}; {nearest(name, federation.names)}")
    if federation.global_test is None:
        raise InputError(
            f"the attacker learns on the dataset's test set, and {federation.config.data.dataset} has none"
        )
    victim = federation.make_client(name)
    victim.seed = federation.seed
    protected = {} if federation.guard is None else {one.field: one for one in federation.guard.protections}
    aim = targets.find(folder, victim, field, protected, federation.method)
    one = protected.get(aim.field)
    clip = None if one is None or one.bound is None else one.clip  # of samples, before the mean
    stream = rng.generator(federation.seed, "attack", name, aim.field)
    rows, pictures = targets.auxiliary(victim, federation.global_test, aim.rows.shape[1], aim.groups, stream)
    bounded = rows
    if clip is not None:
        again = rng.generator(federation.seed, "attack", name, aim.field)
        bounded, _ = targets.auxiliary(victim, federation.global_test, aim.rows.shape[1], aim.groups, again, clip)

    def back(leak: Leak, left: Tensor, rows: Tensor) -> Tensor:
        with rng.seeded(federation.seed, "attack", name, aim.field):
            decoder = Decoder(rows.shape[1], federation.shape)
        return train(decoder, rows, pictures, leak, steps, stream).pictures(left)

    seen = [
        Seen("nothing of the client", pictures.mean(0, keepdim=True).expand_as(aim.pictures)),
        Seen("the class of a row alone", targets.by_class(federation.global_test, aim.labels)),
    ]
    if one is not None:
        seen.append(Seen("without noise", back(lambda rows, _: rows, aim.clean, rows)))
    leak = _leak(one, victim, aim) if one is not None else (lambda rows, _: rows)
    seen.append(Seen("as it left", back(leak, aim.rows, bounded)))
    facts = {
        "client": name,
        "field": aim.field,
        "round": aim.round,
        "rows": len(aim.rows),
        "samples_behind_a_row": [min(aim.groups), max(aim.groups)],
        "model": aim.model,
        "protected": one is not None,
        "cosine": float(F.cosine_similarity(aim.rows.double(), aim.clean.double(), dim=1).mean()),
        "threat": THREAT,
        "steps": steps,
        "scores": {each.name: each.scored(aim.pictures) for each in seen},
    }
    return Outcome(facts, aim.pictures, tuple(seen))


def _leak(one: Protection, victim: Client, aim: targets.Target) -> Leak:
    """Rows of the attacker's own pictures, protected as the client protects its rows."""
    sigma = one.sigma
    if sigma is None:
        sigma = one.multiplier * measured_sensitivity(victim, one.field, aim.rows.shape[1], "attack")
    deviation, together = sigma, len(aim.rows) if one.unit == "message" else 1

    def leak(rows: Tensor, stream: torch.Generator) -> Tensor:
        if one.clip is not None:
            # a field that is clipped as a whole leaves a row its share of the norm
            share = one.clip / together**0.5
            rows = clip_rows(rows, share)
        return rows + deviation * torch.randn(rows.shape, generator=stream)

    return leak


def draw(outcome: Outcome, path: Path) -> None:
    """A grid: in a column a picture and what came back of it."""
    from matplotlib.figure import Figure

    at = torch.arange(min(SHOWN, len(outcome.real))) * len(outcome.real) // min(SHOWN, len(outcome.real))
    lines = [("the client's", outcome.real), *((each.name, each.pictures) for each in outcome.seen)]
    figure = Figure(figsize=(0.7 * len(at) + 1.4, 0.75 * len(lines)), layout="constrained")
    grid = figure.subplots(len(lines), len(at), squeeze=False)
    for (name, pictures), row in zip(lines, grid, strict=True):
        for axes, k in zip(row, at.tolist(), strict=True):
            picture = pictures[k].clamp(0, 1).permute(1, 2, 0).numpy()
            axes.imshow(picture[..., 0] if picture.shape[2] == 1 else picture, cmap="gray", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"the picture cannot be written to {path}: {error}") from None
