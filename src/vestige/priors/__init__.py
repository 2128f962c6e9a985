"""Learned priors over images, and what an attacker sees through noise with them.

``DiffusionPrior.load`` reads a diffusion model, ``train_prior`` makes a small one, and
``posterior_mean``, ``ddim`` and ``ddpm`` look through noise of known deviation. ``try_factors`` and
``likeliest_deviation`` find what the attacker was not told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vestige.lazy import lazy_names

if TYPE_CHECKING:
    from vestige.priors.denoising import PriorDenoiser as PriorDenoiser
    from vestige.priors.denoising import agreement as agreement
    from vestige.priors.denoising import agreement_map as agreement_map
    from vestige.priors.denoising import ddim as ddim
    from vestige.priors.denoising import ddpm as ddpm
    from vestige.priors.denoising import posterior_mean as posterior_mean
    from vestige.priors.diffusion import DiffusionPrior as DiffusionPrior
    from vestige.priors.diffusion import ImagePrior as ImagePrior
    from vestige.priors.diffusion_training import PriorTraining as PriorTraining
    from vestige.priors.diffusion_training import train_prior as train_prior
    from vestige.priors.gaussian import GaussianImages as GaussianImages
    from vestige.priors.private_images import PrivateImages as PrivateImages
    from vestige.priors.private_images import clipping_factors as clipping_factors
    from vestige.priors.private_images import privatize as privatize
    from vestige.priors.schedule import NoiseSchedule as NoiseSchedule
    from vestige.priors.token_ngrams import TokenNgrams as TokenNgrams
    from vestige.priors.unknowns import FactorTrial as FactorTrial
    from vestige.priors.unknowns import likeliest_deviation as likeliest_deviation
    from vestige.priors.unknowns import try_factors as try_factors
    from vestige.priors.unknowns import wavelet_deviation as wavelet_deviation
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
