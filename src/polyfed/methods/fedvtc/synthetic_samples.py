"""Labelled images that a decoder makes whenever they are walked over, some at a time: a batch, or CHUNK if more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.training.fit import TrainSettings, fit
from polyfed.training.samples import Samples, as_floats

CHUNK = 256  # images that are made at a time


@dataclass(frozen=True)
class Generated(Samples):
    """x = decoder(c_y + sigma eps). In place of images there is the seed of every sample's eps: all walks agree."""

    decoder: nn.Module
    centres: Tensor  # (classes, width)
    deviation: Tensor  # (width,)

    def subset(self, indices: Tensor) -> Generated:
        return replace(self, images=self.images[indices], labels=self.labels[indices])

    def batches(
        self, size: int, *, shuffle: torch.Generator | None = None, drop_single: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        n = len(self)
        kept = n - 1 if drop_single and n % size == 1 else n
        order = torch.arange(n) if shuffle is None else torch.randperm(n, generator=shuffle)
        for chunk in torch.split(order[:kept], max(1, CHUNK // size) * size):
            yield from zip(torch.split(self.made(chunk), size), torch.split(self.labels[chunk], size), strict=True)

    @torch.no_grad()
    def made(self, at: Tensor) -> Tensor:
        """The images of some samples."""
        stream = torch.Generator()
        width = self.centres.shape[1]
        noise = [torch.randn(width, generator=stream.manual_seed(int(seed))) for seed in self.images[at]]
        latents = self.centres[self.labels[at]] + self.deviation * torch.stack(noise)
        images: Tensor = self.decoder.eval()(latents)
        return images.contiguous(memory_format=torch.channels_last)


def generated(
    decoder: nn.Module, centres: Tensor, classes: Tensor, deviation: Tensor, each: int, stream: torch.Generator
) -> Generated:
    """`each` samples of some classes, given the centres of all."""
    labels = classes.repeat_interleave(each)
    seeds = torch.randint(2**62, (len(labels),), generator=stream)
    return Generated(seeds, labels, decoder, centres, deviation)


def fine_tune(
    model: nn.Module,
    made: Samples,
    settings: TrainSettings,
    stream: torch.Generator,
    *,
    real: tuple[Samples, float],
    freeze_norms: bool = False,
) -> None:
    """Train a classifier on generated samples; `real` says from where, and how many, are drawn beside each.

    With `freeze_norms`, BatchNorm keeps to the statistics of real images that it has.
    """

    def loss(x: Tensor, y: Tensor) -> Tensor:
        own, share = real
        count = round(share * len(y)) if len(own) else 0
        if count:
            at = torch.randint(len(own), (count,), generator=stream)
            x, y = torch.cat([x, as_floats(own.images[at])]), torch.cat([y, own.labels[at]])
        return F.cross_entropy(model(x), y)

    trained = [model]
    if freeze_norms:
        model.train()
        for part in model.modules():
            part.training = not isinstance(part, nn.modules.batchnorm._BatchNorm)
        trained = []  # a fit would set it to training mode
    fit(trained, loss, made, settings, stream, parameters=model.parameters())
