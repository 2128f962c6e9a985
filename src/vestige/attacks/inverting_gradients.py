"""Inverting gradients: match the direction of the gradient by Adam, smooth images first."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vestige import progress
from vestige.attacks.gradient_matching.batch_norm import statistics_penalty
from vestige.attacks.gradient_matching.gradient_distances import tensorwise_cosine
from vestige.attacks.gradient_matching.lbfgs import BatchedLBFGS
from vestige.attacks.gradient_matching.matching import (
    Matching,
    batch_size_of,
    cosine_distance,
    cosine_distance_to,
    labels_of,
)
from vestige.attacks.gradient_matching.patience import Patience
from vestige.attacks.gradient_matching.restarts import Stack
from vestige.attacks.gradient_matching.smoothness import (
    STRENGTH,
    balanced,
    excess,
    ratio_at,
    smoothness_weight,
    total_variation,
    unit,
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

REPORT_EVERY = 10
# Kingma and Ba 2015, as in torch.optim.Adam, which the authors' code uses.
FIRST_MOMENT, SECOND_MOMENT = 0.9, 0.999
# Share of the learning rate that is left in the last step.
LEAST_RATE = 1e-3
SHARPENING, SHARPENING_RATE = 0.5, 0.1
"""Share of the polish that is Adam without smoothness, and its share of the learning rate."""
PROMISING, EXPLAINED = 1e-5, 1e-7
"""Distances below which sharpened images are polished further, and at last kept.

On faces and digits, solved releases ended at 1e-8 to 1e-14 and others above 1e-6; there, sharp
images explain the release no better for being sharp. Images of a prior that is hardly
smoother than noise are kept where the distance falls by its smoothness in powers of ten.
"""


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
      ``smoothness=0``.
    - ``tensor_share`` of the distance is the mean of each tensor's own cosine distance, weighed by
      its number of entries, so that deep networks are not matched in one large tensor alone. 0 is
      the paper.
    - ``inner_weight`` multiplies all tensors but the last layer's before the cosine of the other
      share is taken. The gradient of inner layers jumps wherever a ReLU switches, the last layer's
      does not. 1 is the paper.
    - ``polish`` is the share of the iterations that match without smoothness, first by Adam, then
      by L-BFGS, which reaches the bottom of the basin that Adam circles in. Its result replaces
      smooth images only where it explains the release to rounding. 0 is the paper.
    - Adam reads the slope, not its sign, and the rate falls along half a cosine;
      ``signed=True`` takes the sign, and cuts the rate to a tenth after 3/8, 5/8 and 7/8 of the
      steps, as in the paper.
    - ``initialization="normal"`` is the paper; "uniform" starts inside the bounds.
    - Under noise of a known size the total variation weighs what the prior says it should (see
      :func:`.smoothness.smoothness_weight`), and all tensors count fully: the most probable images
      given the release, if neighbouring pixels differ by a Laplace variable.
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
    learning_rate: float = 0.1
    smoothness: float = 1.0
    total_variation: float = 0.0
    tensor_share: float = 0.3
    inner_weight: float = 0.3
    polish: float = 0.3
    signed: bool = False
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
        return lambda observation, generator: self._invert(public, observation, generator)

    def _invert(
        self, public: Public, observation: Observation, generator: torch.Generator
    ) -> Reconstruction:
        size = batch_size_of(observation)
        matching = Matching(public, observation.release, size)
        labels, origin = labels_of(public, observation)
        targets = matching.targets(labels)
        distance = self._distance(matching)

        def simulate(x: Tensor, *, functional: bool) -> Tensor:
            return matching.simulated(x, targets, functional=functional)

        stack = Stack(simulate, distance, self._penalty(matching, targets))
        start = matching.drawn(
            (self.restarts, size, *public.space.shape), self.initialization, generator
        )
        polishing = round(self.polish * self.iterations)
        smooth = self._smoothness(matching)
        patience = Patience.of(self.patience, self.iterations, matching, stack, size)
        x, objective, stopped = self._descend(
            matching,
            stack,
            start,
            self.iterations - polishing,
            STRENGTH * smooth,
            patience=patience,
        )
        remark = "" if patience is None else patience.remark
        if polishing and not stopped:
            bare = Stack(simulate, self._joint_distance(matching))
            bare.vectorized = stack.vectorized
            polished, stopped = self._polish(matching, bare, x, polishing, smooth)
            lower, _ = stack(polished)
            if smooth:
                wanted = _wanted(bare(x)[0], EXPLAINED, smooth)
                lower = torch.where(bare(polished)[0] < wanted, lower, math.inf)
            x, objective = _better(polished, lower, x, objective)
        best = int(objective.argmin())
        stopped = stopped or self._told(self.iterations, objective)
        simulated = simulate(x[best], functional=False).detach()
        remaining, _ = cosine_distance(simulated[None], matching.observed)
        explained = 1.0 - float(remaining)
        info: dict[str, str | int | float | bool] = {"labels": origin, "restarts": self.restarts}
        if not stack.vectorized:
            info["restarts run"] = "one after another: vmap cannot handle this model"
        if stopped and not remark:
            info["interrupted"] = True
        finite = bool(torch.isfinite(objective[best]))
        return Reconstruction(
            x[best],
            labels,
            torch.full((size,), max(0.0, explained) if finite else 0.0),
            float(remaining) if finite else None,
            not finite,
            info,
            remark,
        )

    def _distance(self, matching: Matching) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Distance to the release: one cosine with inner tensors weighed down, and each tensor's.

        Noise is as large in every tensor, so under noise the plain cosine is the likelihood.
        """
        joint, share = self._joint_distance(matching), self.tensor_share
        if share == 0 or matching.noise_share > 0:
            return joint
        own = tensorwise_cosine(matching, "entries")

        def distance(simulated: Tensor) -> tuple[Tensor, Tensor]:
            values, slopes = joint(simulated)
            own_values, own_slopes = own(simulated)
            slopes = slopes.mul_(1 - share).add_(own_slopes, alpha=share)
            return values * (1 - share) + own_values * share, slopes

        return distance

    def _joint_distance(self, matching: Matching) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """One cosine of all tensors; inner ones are weighed down where there is no noise."""
        return _weighted(matching, 1.0 if matching.noise_share > 0 else self.inner_weight)

    def _smoothness(self, matching: Matching) -> float:
        """The prior's smoothness; 0 where the total variation has a weight of its own.

        That is where it was given, and under noise of a known size.
        """
        images = isinstance(matching.public.space, ImageSpace)
        if not images or self.total_variation or matching.noise_share > 0:
            return 0.0
        return self.smoothness * excess(matching.public.prior.records.x)

    def _penalty(self, matching: Matching, targets: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Weighted total variation and batch-norm statistics of one restart, where they apply."""
        public, terms = matching.public, []
        smoothness = self.total_variation
        if isinstance(public.space, ImageSpace) and matching.noise_share > 0:
            smoothness = max(smoothness, smoothness_weight(matching, len(targets)))
        if smoothness and isinstance(public.space, ImageSpace):
            terms.append((smoothness, total_variation))
        if self.batch_norm_weight and matching.release.buffers:
            statistics = statistics_penalty(public.simulator, matching.release.buffers, targets)
            if statistics is not None:
                terms.append((self.batch_norm_weight, statistics))
        if not terms:
            return None
        return lambda x: torch.stack([weight * term(x) for weight, term in terms]).sum()

    def _descend(
        self,
        matching: Matching,
        stack: Stack,
        x: Tensor,
        steps: int,
        ratio: float = 0.0,
        *,
        rate: float = 1.0,
        done: int = 0,
        patience: Patience | None = None,
    ) -> tuple[Tensor, Tensor, bool]:
        """Best iterates (restarts, batch, *shape) of projected Adam, and their objectives.

        ``rate`` multiplies the learning rate; ``done`` iterations came before.
        """
        first, second = torch.zeros_like(x), torch.zeros_like(x)
        best_x = x = matching.clipped(x)
        best = torch.full((len(x),), float("inf"), dtype=x.dtype, device=x.device)
        if not steps:
            return best_x, best, False
        due = progress.frames_due(self.iterations)
        for step in range(steps):
            values, (slope,) = stack(x)
            best_x, best = _better(x, values, best_x, best)
            if done + step in due:
                progress.show_frame(done + step, self.iterations, best_x[int(best.argmin())])
            if step % REPORT_EVERY == 0 and self._told(done + step, best):
                return best_x, best, True
            if patience is not None and patience.exhausted(step, best):
                return best_x, best, True
            if ratio:
                slope = balanced(slope, variation_slope(x), ratio_at(step, steps, ratio))
            slope = slope.sign_() if self.signed else unit(slope)
            first.lerp_(slope, 1 - FIRST_MOMENT)
            second.mul_(SECOND_MOMENT).addcmul_(slope, slope, value=1 - SECOND_MOMENT)
            scale = (second / (1 - SECOND_MOMENT ** (step + 1))).sqrt_().add_(1e-12)
            length = rate * self._rate(step, steps) / (1 - FIRST_MOMENT ** (step + 1))
            x = matching.clipped(torch.addcdiv(x, first, scale, value=-length))
        values, _ = stack(x)
        return *_better(x, values, best_x, best), False

    def _rate(self, step: int, steps: int) -> float:
        if self.signed:
            return self.learning_rate * 0.1 ** sum(8 * step >= steps * part for part in (3, 5, 7))
        return self.learning_rate * (LEAST_RATE + (1 + math.cos(math.pi * step / steps)) / 2)

    def _polish(
        self, matching: Matching, bare: Stack, x: Tensor, steps: int, smooth: float
    ) -> tuple[Tensor, bool]:
        """Candidates (restarts, batch, *shape) of lowest distance near x, and whether to stop.

        Smooth images first give up their smoothness by Adam: L-BFGS alone would stop at the first
        kink of the network. Where that does not nearly explain the release, the rest is saved.
        """
        if smooth:
            first = round(SHARPENING * steps)
            wanted = _wanted(bare(x)[0], PROMISING, smooth - 1)
            x, values, stopped = self._descend(
                matching, bare, x, first, rate=SHARPENING_RATE, done=self.iterations - steps
            )
            if stopped or not bool((values < wanted).any()):
                return x, stopped
            steps -= first

        def evaluate(points: Tensor) -> tuple[Tensor, Tensor]:
            values, (slopes,) = bare(points.reshape(x.shape))
            return values, slopes.flatten(1)

        # Without bounds: an objective that it cannot leave is its own bound.
        search, done, stopped = BatchedLBFGS(evaluate, x.flatten(1)), self.iterations - steps, False
        due = progress.frames_due(self.iterations)
        for step in range(steps):
            if done + step in due:
                point = search.points[int(search.values.argmin())].to(x).reshape(x.shape[1:])
                progress.show_frame(done + step, self.iterations, matching.clipped(point))
            search.step()
            if step % REPORT_EVERY == 0 and self._told(done + step, search.values):
                stopped = True
                break
        return matching.clipped(search.points.to(x).reshape(x.shape)), stopped

    def _told(self, done: int, values: Tensor) -> bool:
        """Report progress; return whether to stop."""
        watched = progress.has_listener()
        return watched and progress.report(done, self.iterations, float(values.min()))


def _weighted(matching: Matching, inner: float) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Cosine distance to the release with inner tensors weighed down."""
    if inner == 1.0:
        return cosine_distance_to(matching.observed)
    weights = matching.weights(inner)
    to_weighted = cosine_distance_to(matching.observed * weights)

    def distance(simulated: Tensor) -> tuple[Tensor, Tensor]:
        values, slopes = to_weighted(simulated * weights)
        return values, slopes.mul_(weights)

    return distance


def _wanted(distances: Tensor, enough: float, powers: float) -> Tensor:
    """Distance that a polish of images at these distances must reach to be worth something."""
    return (distances * 10 ** -max(0.0, powers)).clamp_min(enough)


def _better(x: Tensor, values: Tensor, best_x: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
    """Keep the lower of two objectives (restarts,), restart by restart; NaN is never lower."""
    lower = values < best
    mask = lower.reshape(-1, *[1] * (x.dim() - 1))
    return torch.where(mask, x, best_x), torch.where(lower, values, best)
