"""How alike two pictures are, in [0, 1] per pixel: PSNR and SSIM."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

MOST_DB = 100.0  # what equal pictures get, whose ratio would be infinite
WINDOW, SPREAD = 11, 1.5  # of the Gaussian window of SSIM (Wang et al., 2004)
STEADY = (0.01**2, 0.03**2)  # its constants, for pixels in [0, 1]


def psnr(made: Tensor, real: Tensor) -> Tensor:
    """The ratio of peak signal to noise of every picture, in dB."""
    error = (made - real).double().square().flatten(1).mean(1)
    return (-10 * torch.log10(error)).clamp(max=MOST_DB)


def ssim(made: Tensor, real: Tensor) -> Tensor:
    """The structural similarity of every picture: the mean over channels and all places where the window fits.

    Pictures that are smaller than the window get the largest odd one that fits.
    """
    channels, side = made.shape[1], min(made.shape[2:])
    size = min(WINDOW, side - (side + 1) % 2)
    at = torch.arange(size, dtype=torch.float64) - size // 2
    bell = torch.exp(-at.square() / (2 * SPREAD**2))
    window = torch.outer(bell, bell)
    kernel = (window / window.sum()).expand(channels, 1, size, size)

    def blurred(x: Tensor) -> Tensor:
        return F.conv2d(x, kernel, groups=channels)

    a, b = made.double(), real.double()
    mean_a, mean_b = blurred(a), blurred(b)
    var_a, var_b = blurred(a * a) - mean_a**2, blurred(b * b) - mean_b**2
    both = blurred(a * b) - mean_a * mean_b
    one, two = STEADY
    index = (2 * mean_a * mean_b + one) * (2 * both + two) / ((mean_a**2 + mean_b**2 + one) * (var_a + var_b + two))
    return index.flatten(1).mean(1)
