"""Similarity of images with pixels in [0, 1]: PSNR and SSIM."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_PSNR = 100.0  # dB, for equal images, whose ratio is infinite
WINDOW, SIGMA = 11, 1.5  # size and standard deviation of the Gaussian window of SSIM (Wang et al., 2004)
C1, C2 = 0.01**2, 0.03**2  # constants of SSIM for pixels in [0, 1]


def psnr(images: Tensor, targets: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio of each image, in dB."""
    error = (images - targets).double().square().flatten(1).mean(1)
    return (-10 * torch.log10(error)).clamp(max=MAX_PSNR)


def ssim(images: Tensor, targets: Tensor) -> Tensor:
    """Return the structural similarity of each image: the mean over channels and window positions.

    Images that are smaller than the window get the largest odd window that fits.
    """
    channels, side = images.shape[1], min(images.shape[2:])
    size = min(WINDOW, side - (side + 1) % 2)
    offsets = torch.arange(size, dtype=torch.float64) - size // 2
    gaussian = torch.exp(-offsets.square() / (2 * SIGMA**2))
    window = torch.outer(gaussian, gaussian)
    kernel = (window / window.sum()).expand(channels, 1, size, size)

    def local_mean(x: Tensor) -> Tensor:
        return F.conv2d(x, kernel, groups=channels)

    a, b = images.double(), targets.double()
    mean_a, mean_b = local_mean(a), local_mean(b)
    var_a, var_b = local_mean(a * a) - mean_a**2, local_mean(b * b) - mean_b**2
    covariance = local_mean(a * b) - mean_a * mean_b
    luminance = (2 * mean_a * mean_b + C1, mean_a**2 + mean_b**2 + C1)
    structure = (2 * covariance + C2, var_a + var_b + C2)
    index = luminance[0] * structure[0] / (luminance[1] * structure[1])
    return index.flatten(1).mean(1)
