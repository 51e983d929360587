"""BatchNorm statistics that are estimated again from data."""

from __future__ import annotations

import torch
from torch import nn

from polyfed.core import rng
from polyfed.training.batchnorm import recalibrate
from polyfed.training.samples import Samples


def test_recalibrated_statistics_are_those_of_the_data() -> None:
    images = torch.randint(0, 256, (8, 2, 3, 3), generator=rng.generator("images")).to(torch.uint8)
    samples = Samples(images, torch.zeros(8, dtype=torch.int64))
    norm = nn.BatchNorm2d(2)
    norm(torch.randn(4, 2, 3, 3, generator=rng.generator("before")))
    recalibrate(nn.Sequential(norm), samples, 8)
    pixels = images.double() / 255
    assert norm.running_mean is not None and norm.running_var is not None and norm.momentum == 0.1
    torch.testing.assert_close(norm.running_mean.double(), pixels.mean((0, 2, 3)), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(norm.running_var.double(), pixels.var((0, 2, 3)), rtol=1e-5, atol=1e-6)
    before = norm.running_mean.clone()
    recalibrate(nn.Sequential(norm), samples.subset(torch.tensor([0])), 8)
    assert torch.equal(norm.running_mean, before)  # one sample has no variance
