"""Inverting gradients: match the direction of the gradient by Adam, smooth images first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vestige.attacks.gradient_matching.batch_norm import statistics_penalty
from vestige.attacks.gradient_matching.matching import (
    Matching,
    batch_size_of,
    labels_of,
)
from vestige.attacks.gradient_matching.search import Guide, Search
from vestige.attacks.gradient_matching.smoothness import (
    STRENGTH,
    balanced,
    excess,
    ratio_at,
    smoothness_weight,
    stark,
    total_variation,
    variation_slope,
)
from vestige.choices import check_fields
from vestige.interfaces import (
    GradientRelease,
    Observation,
    Public,
    Reconstruction,
    Reconstructor,
    UpdateRelease,
)
from vestige.records import ImageSpace


@dataclass(frozen=True)
class InvertingGradients:
    """Geiping et al. 2020, "Inverting Gradients", Eq. 4 with a schedule for any kind of image.

    Minimises 1 − cosine between the simulated and the released gradient by Adam, with candidates
    kept inside the bounds of their space, and returns the iterate of the lowest distance.

    Where we deviate, and how to undo it:

    - ``smoothness``: images start smooth and gain detail. At each step the slope of the total
      variation is added to that of the distance, in a ratio that falls to a tenth; where it starts
      is read off the prior's records (see :mod:`.smoothness`), times ``smoothness``. The paper has
      a weight instead that is chosen by hand and stays: ``total_variation=0.01``, say, and
      ``smoothness=0``. Stark images (digits of 8 × 8: hardly smoother than noise, with many pixels
      on the bounds) get no such start.
    - ``tensor_share`` of the distance is the mean of each tensor's own cosine distance, weighed by
      its number of entries, so that deep networks are not matched in one large tensor alone. 0 is
      the paper; None is .3, and 0 for stark images.
    - ``inner_weight`` multiplies all tensors but the last layer's before the cosine of the other
      share is taken. The gradient of inner layers jumps wherever a ReLU switches, the last layer's
      does not. 1 is the paper.
    - ``polish`` is the share of the iterations that match without smoothness, first by Adam, then
      by L-BFGS, which reaches the bottom of the basin that Adam circles in. Its result replaces
      smooth images only where it explains the release to rounding. 0 is the paper; None is .3, and
      .15 for stark images.
    - Adam reads the slope, not its sign, and the rate falls along half a cosine;
      ``signed=True`` takes the sign, and cuts the rate to a tenth after 3/8, 5/8 and 7/8 of the
      steps, as in the paper. None takes the sign for stark images; a ``learning_rate`` of None is
      .2 with signs and .1 without.
    - ``initialization="normal"`` is the paper; "uniform" starts inside the bounds.
    - Under noise of a known size the polish minimises the plain cosine distance and the total
      variation, which weighs what the prior says it should (see
      :func:`.smoothness.smoothness_weight`): the most probable images given the release, if
      neighbouring pixels differ by a Laplace variable. From a random start that alone finds worse
      images than smoothness first.
    - ``batch_norm_weight`` adds the distance of batch-norm statistics (Yin et al. 2021, Eq. 8) if
      the release carries buffers; the paper has no such term.
    - ``patience`` is the share of the iterations after which a search stops whose distance is still
      that of unrelated images (see :mod:`.patience`); it returns what it has and remarks on it.
      Searches in tables, under a mask or under noise of a known size are not stopped. 0 is the
      paper: no search is.

    All restarts run as one batch; the one with the lowest objective is returned. Confidence is
    the cosine between the simulated and the released gradient, not below 0: one value for the
    whole batch.
    """

    iterations: int = 600
    restarts: int = 1
    learning_rate: float | None = None
    smoothness: float = 1.0
    total_variation: float = 0.0
    tensor_share: float | None = None
    inner_weight: float = 0.3
    polish: float | None = None
    signed: bool | None = None
    batch_norm_weight: float = 0.0
    initialization: Literal["normal", "uniform"] = "uniform"
    patience: float = 0.3

    name = "Inverting Gradients"
    summary = "matches the gradient's direction, smooth images first, then L-BFGS"
    needs = "the model and the batch size"
    cites = (
        "Geiping, Bauermeister, Dröge, Moeller 2020, Inverting Gradients: How easy is it to break "
        "privacy in federated learning?, Eq. 4"
    )
    reads = (GradientRelease, UpdateRelease)

    def __post_init__(self) -> None:
        check_fields(
            self,
            counts=("iterations", "restarts"),
            positive=("learning_rate",),
            not_negative=("smoothness", "total_variation", "inner_weight", "batch_norm_weight"),
            shares=("polish", "tensor_share", "patience"),
        )

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Return the reconstructor; it needs no training."""
        known = public.prior.records.x
        images = isinstance(public.space, ImageSpace)
        likely = Likely(excess(known), stark(known)) if images else Likely(0.0, False)
        return lambda observation, generator: self._invert(public, likely, observation, generator)

    def _invert(
        self, public: Public, likely: Likely, observation: Observation, generator: torch.Generator
    ) -> Reconstruction:
        """Search for images as smooth as those of the prior."""
        size = batch_size_of(observation)
        matching = Matching(public, observation.release, size)
        labels, origin = labels_of(public, observation)
        targets = matching.targets(labels)
        images, noisy = isinstance(public.space, ImageSpace), matching.noise_share > 0
        smooth = (
            0.0 if likely.stark or self.total_variation else self.smoothness * likely.smoothness
        )
        signed = likely.stark if self.signed is None else self.signed
        share = (0.0 if likely.stark else 0.3) if self.tensor_share is None else self.tensor_share
        polish = (0.15 if likely.stark else 0.3) if self.polish is None else self.polish
        penalty, posterior = self._penalty(matching, targets), None
        if noisy and images:
            posterior = self._penalty(matching, targets, smoothness_weight(matching, size))
        plain = noisy and not images
        search = Search(
            matching,
            targets,
            self.iterations,
            self.learning_rate or (0.2 if signed else 0.1),
            0.0 if plain else share,
            1.0 if plain else self.inner_weight,
            polish,
            signed,
            penalty if smooth or posterior is None else posterior,
            posterior,
            0.0 if noisy else self.patience,
        )
        start = matching.drawn(
            (self.restarts, size, *public.space.shape), self.initialization, generator
        )
        guide = _smoothing(STRENGTH * smooth) if smooth else None
        return search.reconstruction(search.run(start, guide, smooth), labels, origin)

    def _penalty(
        self, matching: Matching, targets: Tensor, least_variation: float = 0.0
    ) -> Callable[[Tensor], Tensor] | None:
        """Weighted total variation and batch-norm statistics of one restart, where they apply."""
        public, terms = matching.public, []
        variation = max(self.total_variation, least_variation)
        if variation and isinstance(public.space, ImageSpace):
            terms.append((variation, total_variation))
        if self.batch_norm_weight and matching.release.buffers:
            statistics = statistics_penalty(public.simulator, matching.release.buffers, targets)
            if statistics is not None:
                terms.append((self.batch_norm_weight, statistics))
        if not terms:
            return None
        return lambda x: torch.stack([weight * term(x) for weight, term in terms]).sum()


@dataclass(frozen=True)
class Likely:
    """What the prior's records say of images: their smoothness, and whether they are stark."""

    smoothness: float
    stark: bool


def _smoothing(ratio: float) -> Guide:
    """The slope of the total variation beside that of the distance, in a ratio that falls."""

    def guide(slope: Tensor, x: Tensor, step: int, steps: int) -> Tensor:
        return balanced(slope, variation_slope(x), ratio_at(step, steps, ratio))

    return guide
