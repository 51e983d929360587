"""PSNR and SSIM against values computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.attack.image_similarity import psnr, ssim


def images(seed: int, channels: int = 1, side: int = 16) -> torch.Tensor:
    return torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(seed))


def test_psnr_by_hand() -> None:
    black = torch.zeros(2, 1, 2, 2)
    noisy = black.clone()
    noisy[0] += 0.1  # a mean square of 0.01 is 20 dB
    noisy[1, 0, 0, 0] = 1.0  # one of four pixels: a mean square of 1/4
    assert psnr(noisy, black).tolist() == pytest.approx([20.0, 10 * math.log10(4)], abs=1e-5)
    assert psnr(black, black).tolist() == [100.0, 100.0]


@given(low=st.floats(0, 1), high=st.floats(0, 1))
@settings(max_examples=25, deadline=None)
def test_ssim_of_two_uniform_images(low: float, high: float) -> None:
    """Check the luminance term, the only one of uniform images: (2ab + C1) / (a^2 + b^2 + C1)."""
    a, b = (torch.full((1, 1, 12, 12), value, dtype=torch.float64) for value in (low, high))
    expected = (2 * low * high + 1e-4) / (low**2 + high**2 + 1e-4)
    assert float(ssim(a, b)) == pytest.approx(expected, abs=1e-9)


def test_ssim_of_an_image_as_large_as_the_window() -> None:
    """Compare an 11x11 image with one bright pixel in the middle with a black one."""
    image = torch.zeros(1, 1, 11, 11)
    image[0, 0, 5, 5] = 1.0
    weights = [math.exp(-((k - 5) ** 2) / (2 * 1.5**2)) for k in range(11)]
    middle = (weights[5] / sum(weights)) ** 2  # of the pixel
    variance = middle - middle**2
    expected = (1e-4 / (middle**2 + 1e-4)) * (9e-4 / (variance + 9e-4))
    assert float(ssim(image, torch.zeros_like(image))) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("channels", "side"), [(1, 16), (3, 16), (1, 8), (1, 7), (3, 1)])
def test_ssim_is_one_for_equal_noisyand_symmetric(channels: int, side: int) -> None:
    a, b = images(1, channels, side), images(2, channels, side)
    assert ssim(a, a).tolist() == pytest.approx([1.0, 1.0])
    assert torch.allclose(ssim(a, b), ssim(b, a)) and bool((ssim(a, b) < 1).all())


def test_ssim_decreases_with_noise() -> None:
    a, noise = images(1), images(2) - 0.5
    near, far = ssim(a + 0.1 * noise, a), ssim(a + 0.8 * noise, a)
    assert bool((near > far).all())
