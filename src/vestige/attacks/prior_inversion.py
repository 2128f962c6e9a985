"""Prior inversion: gradient matching that a denoiser guides towards likely images."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vestige.attacks.gradient_matching.matching import Matching, batch_size_of, labels_of
from vestige.attacks.gradient_matching.search import EXPLAINED, Found, Search
from vestige.attacks.gradient_matching.smoothness import (
    STRENGTH,
    balanced,
    excess,
    ratio_at,
    variation_slope,
)
from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.interfaces import (
    GradientRelease,
    Observation,
    Public,
    Reconstruction,
    Reconstructor,
    UpdateRelease,
)
from vestige.priors.denoising import denoise
from vestige.priors.diffusion import ImagePrior
from vestige.priors.gaussian import FEWEST, GaussianImages
from vestige.records import ImageSpace

REFRESH = 4
"""Steps between two calls of the denoiser. Candidates are drawn towards its last answer meanwhile;
a call at every step costs more and ends further from the records."""
FRESH_NOISE = 0.5
"""Deviation of the noise that is added before denoising, in units of the level that the denoiser is
told. Without fresh noise high levels failed on tuning worlds; as much as the level gained less."""
ALIKE = 2.0
"""Samples explain the release about as well if their objective is at most this often the lowest,
or if both explain it to rounding."""
PHOTOGRAPHS = 4.0
"""Smoothness of photographs of 32 × 32, for an attacker without records (see :func:`excess`)."""
LEAST_SMOOTHNESS = 1.0
"""Images that are rough have a prior too: its ratio of slopes, and the powers of ten by which a
polish must lower the distance, are those of images with this smoothness at least."""


@dataclass(frozen=True)
class PriorInversion:
    """Gradient matching under a learned prior over images, by denoising.

    Adam minimises 1 − cosine between the simulated and the released gradient as in
    :class:`InvertingGradients` (Geiping et al. 2020, Eq. 4). What makes candidates likely is not
    the total variation but a denoiser: the slope that is added is the residual x − E[x₀ | x_t], the
    gradient of Regularization by Denoising (Romano, Elad and Milanfar 2017, ρ(x) = ½xᵀ(x − f(x)),
    whose gradient is x − f(x)), and by Tweedie's formula σ² times the negative score of the noisy
    images' density. x_t is x with fresh noise, as in RED-diff (Mardani et al. 2023).

    ``prior`` is the denoiser: ``DiffusionPrior.load(folder)``, or any
    :class:`~vestige.priors.ImagePrior` for images of this size and number of channels. Without one
    a Gaussian is fitted to the records that the attacker has.

    Where we deviate from the papers:

    - The noise level σ falls geometrically from ``loudest`` to ``quietest``, in units of the prior,
      whose values lie in [−1, 1]: large shapes first, details last.
    - The residual is weighed by a ratio of slopes, so that the scale of a network's gradient does
      not matter. It falls to a tenth, and where it starts is read off the smoothness of the
      attacker's own records, times ``strength`` (see :mod:`.smoothness`).
    - The denoiser is called at every fourth step, and half of σ is fresh noise.
    - For the first ``smooth_share`` of the steps the total variation takes the denoiser's place, as
      in :class:`InvertingGradients`. On tuning worlds this gained on batches of 8 and cost nothing
      elsewhere.
    - ``tensor_share``, ``inner_weight`` and ``polish`` are those of :class:`InvertingGradients`:
      the polish matches without the prior, and replaces likely images only where it explains the
      release to rounding. There is none under noise of a known size.

    ``samples`` searches start from different noise and run as one batch; the one of lowest distance
    is returned. The others that explain the release about as well are its ``samples``: where they
    differ, the release does not determine the picture, and the prior has invented what is seen
    there. Where they agree, the prior can have invented the same in each. Confidence is the cosine
    between the simulated and the released gradient, not below 0: one value for the whole batch.
    """

    prior: ImagePrior | None = None
    iterations: int = 600
    samples: int = 1
    learning_rate: float = 0.1
    strength: float = 0.5
    loudest: float = 0.3
    quietest: float = 0.05
    smooth_share: float = 0.2
    tensor_share: float = 0.3
    inner_weight: float = 0.3
    polish: float = 0.3

    name = "Prior inversion"
    summary = "matches the gradient's direction, guided by a denoiser of likely images"
    needs = "the model, the batch size and a prior over images"
    cites = (
        "Geiping, Bauermeister, Dröge, Moeller 2020, Inverting Gradients, Eq. 4; Romano, Elad, "
        "Milanfar 2017, The Little Engine That Could: Regularization by Denoising"
    )
    reads = (GradientRelease, UpdateRelease)

    def __post_init__(self) -> None:
        check_fields(
            self,
            counts=("iterations", "samples"),
            positive=("learning_rate", "loudest", "quietest"),
            not_negative=("strength", "inner_weight"),
            shares=("polish", "tensor_share", "smooth_share"),
        )
        if self.quietest > self.loudest:
            raise BadInput("The quietest noise of PriorInversion is not above the loudest.")

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Check that the prior fits the images; fit a Gaussian where none was given."""
        prior = self._image_prior(public)
        return lambda observation, generator: self._invert(prior, public, observation, generator)

    def _image_prior(self, public: Public) -> ImagePrior:
        space = public.space
        if not isinstance(space, ImageSpace):
            raise BadInput(
                "Prior inversion denoises images, and these records are rows of a table: use "
                "InvertingGradients."
            )
        if self.prior is None:
            fitted = GaussianImages.fitted(public.prior.records, public.simulator.like)
            if fitted is None:
                raise BadInput(
                    f"A Gaussian prior is fitted to {FEWEST} records at least: give "
                    "PriorInversion a prior, or collect more records."
                )
            return fitted
        if tuple(self.prior.shape) != space.shape:
            raise BadInput(
                f"The prior knows images of {_size(self.prior.shape)} and these are "
                f"{_size(space.shape)}: train or load a prior of their size."
            )
        if self.loudest > self.prior.schedule.largest:
            raise BadInput(
                f"Noise of deviation {self.loudest:g} is more than the "
                f"{self.prior.schedule.largest:.3g} that this prior's schedule reaches: lower "
                "loudest."
            )
        return self.prior

    def _invert(
        self,
        prior: ImagePrior,
        public: Public,
        observation: Observation,
        generator: torch.Generator,
    ) -> Reconstruction:
        size = batch_size_of(observation)
        matching = Matching(public, observation.release, size)
        labels, origin = labels_of(public, observation)
        noisy = matching.noise_share > 0  # as large in every tensor: the plain cosine counts
        search = Search(
            matching,
            matching.targets(labels),
            self.iterations,
            self.learning_rate,
            0.0 if noisy else self.tensor_share,
            1.0 if noisy else self.inner_weight,
            0.0 if noisy else self.polish,
        )
        start = matching.drawn((self.samples, size, *public.space.shape), "uniform", generator)
        known = public.prior.records.x
        smooth = excess(known) if len(known) > 1 else PHOTOGRAPHS
        guide = DenoisingGuide(
            prior,
            (self.strength * STRENGTH * max(LEAST_SMOOTHNESS, smooth), STRENGTH * smooth),
            (self.loudest, self.quietest),
            self.smooth_share,
            generator,
        )
        found = search.run(start, guide, max(LEAST_SMOOTHNESS, smooth))
        best = search.reconstruction(found, labels, origin)
        return best if best.diverged else replace(best, samples=_alike(found))


class DenoisingGuide:
    """Adds the residual of a denoiser to the slope of the distance, at a noise level that falls.

    ``levels`` are the first and the last noise level, in units of the prior. For the first
    ``smooth_share`` of the steps the total variation is the guide. ``ratios`` are those of the
    denoiser's and of the total variation's slope in the first step; both fall. The last answer of
    the denoiser is kept, so a search needs a guide of its own.
    """

    def __init__(
        self,
        prior: ImagePrior,
        ratios: tuple[float, float],
        levels: tuple[float, float],
        smooth_share: float,
        generator: torch.Generator,
    ) -> None:
        self.prior = prior
        self.ratios = ratios
        self.levels = levels
        self.smooth_share = smooth_share
        self.generator = generator
        self.likely: Tensor | None = None

    def __call__(self, slope: Tensor, x: Tensor, step: int, steps: int) -> Tensor:
        """Both slopes at candidates x (samples, batch, *shape), in the ratio of this step."""
        if step < self.smooth_share * steps and self.ratios[1]:
            return balanced(slope, variation_slope(x), ratio_at(step, steps, self.ratios[1]))
        if self.likely is None or step % REFRESH == 0:
            self.likely = self.denoised(x, self.level(step, steps))
        return balanced(slope, x - self.likely, ratio_at(step, steps, self.ratios[0]))

    def level(self, step: int, steps: int) -> float:
        """The noise level σ of a step: falls geometrically from the first to the last."""
        first, last = self.levels
        return first * (last / first) ** (step / max(1, steps - 1))

    def denoised(self, x: Tensor, level: float) -> Tensor:
        """E[x₀ | x_t] for images x (samples, batch, *shape) in [0, 1], and fresh noise on them."""
        images = 2 * x.flatten(0, 1).float() - 1
        noise = torch.randn(images.shape, generator=self.generator).to(images)
        images = images + FRESH_NOISE * level * noise
        deviations = torch.full((len(images),), level, dtype=torch.float64)
        likely = denoise(self.prior, images, deviations)
        return ((likely.to(x) + 1) / 2).reshape(x.shape)


def _alike(found: Found) -> Tensor | None:
    """Samples (k, batch, *shape) that explain the release about as well as the best, without it."""
    best = int(found.objective.argmin())
    alike = found.objective <= (ALIKE * found.objective[best]).clamp_min(EXPLAINED)
    alike[best] = False
    return found.x[alike] if bool(alike.any()) else None


def _size(shape: tuple[int, ...]) -> str:
    channels, height, width = shape
    return f"{height} × {width} pixels with {channels} channel{'s' if channels > 1 else ''}"
