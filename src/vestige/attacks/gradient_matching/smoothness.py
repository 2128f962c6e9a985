"""How smooth images are, as a term of gradient matching whose weight nobody has to choose.

A fixed weight of the total variation does not carry over from digits to photographs, nor from one
network to the next. Two things replace it: the weight starts high and falls while the matching
goes on, and it is a ratio of slopes, so that the scale of a network's gradient does not matter.
How high it starts is read off the prior's own records.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from vestige.attacks.gradient_matching.matching import Matching

STRENGTH = 0.75
"""Ratio of slopes at the start, for each unit of the prior's smoothness (see :func:`excess`).

Chosen on photographs of 32 × 32 (CIFAR-10, a part that no benchmark uses), whose smoothness is 4.
"""
ROUGH, SATURATED = 2.0, 0.25
"""Smoothness below which images are hardly smoother than noise (digits of 8 × 8 have .8, those of
28 × 28 4.1, faces of 25 × 25 5.5), and the share of their pixels on the bounds that makes them
stark: half of those of digits."""
SMOOTHEST = 20.0
"""Smoothness beyond which images count as no smoother; pages of one colour have no limit."""
FAINTEST = 0.01
"""Least scale at which neighbouring pixels are taken to differ, however blank the prior's are."""
LAST = 0.1
"""Share of that ratio that is left in the last step."""
SHARPNESS = 1e-3
"""Differences of neighbouring pixels below this are noise: they have no direction."""


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels of images (…, height, width).

    Rudin, Osher and Fatemi 1992, anisotropic; the mean over each direction, summed, as in the
    code of Geiping et al. 2020.
    """
    terms = [x.diff(dim=dim).abs().mean() for dim in (-1, -2) if x.shape[dim] > 1]
    return torch.stack(terms).sum() if terms else x.new_zeros(())


def smoothness_weight(matching: Matching, size: int) -> float:
    """Weight of the total variation, beside a cosine distance, that noise of a known size asks for.

    The most probable images minimise ‖g − g̃‖²/(2s²) + Σ|∇x|/b if neighbouring pixels differ by a
    Laplace variable of scale b, which the prior tells. Times s²/‖g̃‖² the first term is the cosine
    distance where lengths agree, and the second the mean variation times s²n/(b‖g̃‖²), n pixels.
    """
    public = matching.public
    scale = float(total_variation(public.prior.records.x)) / 2
    pixels = size * math.prod(public.space.shape)
    return matching.noise_share * pixels / max(scale, FAINTEST)


def excess(images: Tensor) -> float:
    """How much smoother images (n, channels, height, width) are than noise of the same deviation.

    Neighbouring pixels of white noise of deviation s differ by 2s/√π on average; returned is that
    divided by what they differ by here, minus one, and between 0 and ``SMOOTHEST``. It is about 4
    for photographs of 32 × 32 and below 1 for digits of 8 × 8; blank images say nothing.
    """
    differences = [images.diff(dim=dim).abs().mean() for dim in (-1, -2) if images.shape[dim] > 1]
    if not len(images) or not differences:
        return 0.0
    typical = float(torch.stack(differences).mean())
    white = 2 * float(images.std()) / math.sqrt(math.pi)
    return min(SMOOTHEST, max(0.0, white / max(typical, 1e-6) - 1))


def stark(images: Tensor) -> bool:
    """Whether images in [0, 1] are hardly smoother than noise, with many pixels on the bounds."""
    if not len(images) or excess(images) >= ROUGH:
        return False
    return float(((images <= 0) | (images >= 1)).float().mean()) >= SATURATED


def variation_slope(x: Tensor) -> Tensor:
    """Gradient of the isotropic total variation Σ √(Σ_channels |∇x|² + ε²) of (…, c, h, w).

    Rudin, Osher and Fatemi 1992, with one length over all channels (Bresson and Chan 2008), so that
    edges of the channels lie on top of each other.
    """
    across, down = pad(x.diff(dim=-1), (0, 1)), pad(x.diff(dim=-2), (0, 0, 0, 1))
    lengths = (across.square() + down.square()).sum(-3, keepdim=True)
    lengths = lengths.add_(SHARPNESS**2).sqrt_()
    across, down = across / lengths, down / lengths
    slope = -across - down
    slope[..., 1:] += across[..., :-1]
    slope[..., 1:, :] += down[..., :-1, :]
    return slope


def balanced(slope: Tensor, other: Tensor, ratio: float) -> Tensor:
    """Sum of two slopes (restarts, …), each divided by its mean size; the other times ``ratio``."""
    return unit(slope).add_(unit(other), alpha=ratio)


def unit(slope: Tensor) -> Tensor:
    """A slope (restarts, …) divided by the mean size of its entries, restart by restart."""
    means = slope.abs().flatten(1).mean(1).clamp_min(torch.finfo(slope.dtype).tiny)
    return slope / means.reshape(-1, *[1] * (slope.dim() - 1))


def ratio_at(step: int, steps: int, first: float) -> float:
    """The ratio of slopes at a step: falls geometrically from ``first`` to ``LAST`` times it."""
    return first * LAST ** (step / max(1, steps - 1))
