"""Learned priors over images, and what an attacker sees through noise with them.

``DiffusionPrior.load`` reads a diffusion model, ``train_prior`` makes a small one, and
``posterior_mean``, ``ddim`` and ``ddpm`` look through noise of known deviation. ``try_factors`` and
``likeliest_deviation`` find what the attacker was not told.
"""

from vestige.priors.denoising import (
    PriorDenoiser,
    agreement,
    agreement_map,
    ddim,
    ddpm,
    posterior_mean,
)
from vestige.priors.diffusion import DiffusionPrior, ImagePrior
from vestige.priors.private_images import PrivateImages, clipping_factors, privatized
from vestige.priors.schedule import NoiseSchedule
from vestige.priors.training import PriorTraining, train_prior
from vestige.priors.unknowns import (
    FactorTrial,
    likeliest_deviation,
    try_factors,
    wavelet_deviation,
)

__all__ = [
    "DiffusionPrior",
    "FactorTrial",
    "ImagePrior",
    "NoiseSchedule",
    "PriorDenoiser",
    "PriorTraining",
    "PrivateImages",
    "agreement",
    "agreement_map",
    "clipping_factors",
    "ddim",
    "ddpm",
    "likeliest_deviation",
    "posterior_mean",
    "privatized",
    "train_prior",
    "try_factors",
    "wavelet_deviation",
]
