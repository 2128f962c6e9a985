"""Smoothness of images in gradient matching: formulas against loops, and what it is worth."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from skimage.data import lfw_subset
from sklearn.datasets import load_digits, load_sample_images

from vestige.attacks import InvertingGradients
from vestige.attacks.gradient_matching.search import EXPLAINED
from vestige.attacks.gradient_matching.smoothness import (
    LAST,
    SHARPNESS,
    SMOOTHEST,
    balanced,
    excess,
    ratio_at,
    stark,
    unit,
    variation_slope,
)
from vestige.defenses import GradientNoise
from vestige.interfaces import GradientRelease, Hints, Observation, Public
from vestige.networks import convnet
from vestige.records import ImageSpace, Prior, Records
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.losses import one_hot

SPACE = ImageSpace(3, 32, 32, ("a", "b"))


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def naive_variation(x: torch.Tensor) -> torch.Tensor:
    """Isotropic total variation, pixel by pixel, one length over the channels."""
    _, height, width = x.shape
    total = x.new_zeros(())
    for row in range(height):
        for column in range(width):
            here = x[:, row, column]
            squares = x.new_zeros(())
            if column + 1 < width:
                squares = squares + (x[:, row, column + 1] - here).square().sum()
            if row + 1 < height:
                squares = squares + (x[:, row + 1, column] - here).square().sum()
            total = total + (squares + SHARPNESS**2).sqrt()
    return total


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 6, 3), (2, 1, 4)])
def test_slope_of_the_variation_agrees_with_autograd_of_a_loop(shape):
    x = torch.rand(shape, generator=stream(), dtype=torch.float64).requires_grad_()
    (expected,) = torch.autograd.grad(naive_variation(x), x)
    found = variation_slope(x.detach()[None, None])[0, 0]
    torch.testing.assert_close(found, expected)


def test_noise_has_no_smoothness_and_photographs_have_much():
    noise = torch.randn((50, 1, 32, 32), generator=stream())
    assert excess(noise) == pytest.approx(0, abs=0.02)
    # Means of 2 × 2 pixels have half the deviation, and neighbours differ by a normal variable of
    # deviation ½ too, whose mean size is ½√(2/π): √2 times smoother than noise.
    blurred = torch.nn.functional.avg_pool2d(noise, 2, stride=1)
    assert excess(blurred) == pytest.approx(math.sqrt(2) - 1, abs=0.03)
    faces = torch.tensor(np.asarray(lfw_subset()), dtype=torch.float32)[:, None]
    assert excess(faces) > 3


def test_smoothness_of_no_or_blank_images_is_none():
    assert excess(torch.zeros((5, 1, 8, 8))) == 0
    assert excess(torch.zeros((0, 1, 8, 8))) == 0
    pages = torch.rand((5, 3, 1, 1), generator=stream()).expand(5, 3, 8, 8)
    assert excess(pages) == SMOOTHEST
    assert excess(torch.rand((5, 1, 1, 1), generator=stream())) == 0


def test_digits_are_stark_and_nothing_smooth_or_off_the_bounds_is():
    digits = torch.tensor(load_digits().images[:300], dtype=torch.float32)[:, None] / 16
    assert stark(digits)
    assert not stark(digits[:0])
    assert not stark(0.2 + 0.6 * digits)
    assert not stark(torch.nn.functional.interpolate(digits, scale_factor=4, mode="bilinear"))
    assert not stark(torch.rand((50, 1, 8, 8), generator=stream()))


def test_settings_that_are_left_open_are_those_of_the_prior():
    """Stark images are matched by signs, without smoothness; others by slopes, smooth first."""
    digits = load_digits()
    x = torch.tensor(digits.images[:60], dtype=torch.float32)[:, None] / 16
    space = ImageSpace(1, 8, 8, tuple("0123456789"))
    records = Records(x, torch.tensor(digits.target[:60]), space)
    named = InvertingGradients(
        20,
        signed=True,
        learning_rate=0.2,
        tensor_share=0.0,
        smoothness=0.0,
        polish=0.15,
        patience=0,
    )
    assert attacked(InvertingGradients(20, patience=0), records, 0) == attacked(named, records, 0)
    named = InvertingGradients(
        20, signed=False, learning_rate=0.1, tensor_share=0.3, polish=0.3, patience=0
    )
    photos = photographs()
    assert attacked(InvertingGradients(20, patience=0), photos, 0) == attacked(named, photos, 0)


def test_balanced_slopes_do_not_depend_on_their_scale():
    slope = torch.randn((2, 3, 4), generator=stream(1))
    other = torch.randn((2, 3, 4), generator=stream(2))
    expected = balanced(slope, other, 0.5)
    torch.testing.assert_close(balanced(slope * 1e-9, other * 1e6, 0.5), expected)
    torch.testing.assert_close(unit(slope).abs().flatten(1).mean(1), torch.ones(2))
    assert torch.equal(unit(torch.zeros((2, 3))), torch.zeros((2, 3)))


def test_ratio_falls_geometrically():
    ratios = [ratio_at(step, 11, 3.0) for step in range(11)]
    assert ratios[0] == 3.0
    assert ratios[-1] == pytest.approx(3.0 * LAST)
    shares = [after / before for before, after in itertools.pairwise(ratios)]
    assert shares == pytest.approx([shares[0]] * 10)
    assert ratio_at(0, 1, 3.0) == 3.0


def photographs() -> Records:
    """Patches of scikit-learn's two photographs, one pixel in four."""
    patches = [
        image[top : top + 128 : 4, left : left + 128 : 4]
        for image in load_sample_images().images
        for top in range(0, 256, 64)
        for left in range(0, 448, 64)
    ]
    x = torch.tensor(np.stack(patches), dtype=torch.float32).permute(0, 3, 1, 2) / 255
    return Records(x.contiguous(), torch.arange(len(x)) % 2, SPACE)


def attacked(
    attack: InvertingGradients, records: Records, seed: int, noise: float = 0.0, told: bool = True
) -> tuple[float, float]:
    """PSNR of one record of its gradient, and the remaining objective.

    The noise is relative to the norm of the gradient; the attacker is told its size or not.
    """
    order = torch.randperm(len(records), generator=stream(seed))
    secret, prior = records[order[:1]], records[order[1:]]
    simulator = GradientSimulator(convnet(records.space, generator=stream(seed)))
    gradient = simulator(secret.x, one_hot(secret.y, records.classes))
    flat = torch.cat([value.detach().flatten() for value in gradient.values()])
    deviation = noise * float(flat.norm()) / len(flat) ** 0.5
    drawn = stream(seed + 1000)
    release = GradientRelease(
        {
            name: value.detach() + deviation * torch.randn(value.shape, generator=drawn)
            for name, value in gradient.items()
        }
    )
    if noise and told:
        simulator = replace(simulator, alterations=(GradientNoise(deviation),))
    reconstruct = attack.prepare(Public(simulator, Prior(prior)), generator=stream())
    found = reconstruct(Observation(release, Hints(1, secret.y)), stream(seed))
    error = float((found.candidates - secret.x).square().mean())
    return -10 * math.log10(max(error, 1e-15)), float(found.objective or 0)


@pytest.mark.slow
def test_photographs_gain_from_smoothness():
    """Three decibels at least, in the mean of four photographs; one of them may lose."""
    records = photographs()
    gains = [
        attacked(InvertingGradients(iterations=150), records, seed)[0]
        - attacked(InvertingGradients(iterations=150, smoothness=0), records, seed)[0]
        for seed in range(4)
    ]
    assert sum(gains) / 4 > 3


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_a_told_noise_costs_nothing(noise):
    """In the mean of four photographs, knowing the noise loses less than one decibel."""
    records, attack = photographs(), InvertingGradients(iterations=150)
    gains = [
        attacked(attack, records, seed, noise)[0] - attacked(attack, records, seed, noise, False)[0]
        for seed in range(4)
    ]
    assert sum(gains) / 4 > -1


def test_a_release_that_is_explained_is_polished_to_rounding():
    faces = torch.tensor(np.asarray(lfw_subset()), dtype=torch.float32)[:, None]
    records = Records(faces, torch.arange(200) // 100, ImageSpace(1, 25, 25, ("a", "b")))
    exact, objective = attacked(InvertingGradients(iterations=600), records, 3)
    assert exact > 60
    assert objective < EXPLAINED
