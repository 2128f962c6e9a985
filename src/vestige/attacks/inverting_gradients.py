"""Inverting gradients: match the direction of the gradient by signed Adam."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vestige import progress
from vestige.attacks.batch_norm import statistics_penalty
from vestige.attacks.lbfgs import BatchedLBFGS
from vestige.attacks.matching import (
    Matching,
    batch_size_of,
    cosine_distance,
    cosine_distance_to,
    labels_of,
)
from vestige.attacks.restarts import Stack
from vestige.errors import BadInput
from vestige.observations import (
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


@dataclass(frozen=True)
class InvertingGradients:
    """Geiping et al. 2020, "Inverting Gradients", Eq. 4 with the optimiser of Section 5.

    Minimises 1 − cosine between the simulated and the released gradient plus ``total_variation``
    times the total variation (images only), by Adam on the sign of the slope, with candidates
    kept inside the bounds of their space, the learning rate cut to a tenth after 3/8, 5/8 and 7/8
    of the steps, and the best iterate kept.

    Where we deviate, and how to undo it:

    - ``inner_weight`` multiplies all tensors but the last layer's before the cosine is taken. The
      gradient of inner layers jumps wherever a ReLU switches, the last layer's does not. It helps
      batches of wide networks; for one record it makes no difference. 1 is the paper.
    - ``polish`` is the share of the iterations given to L-BFGS on the same distance without total
      variation, which reaches the bottom of the basin that Adam circles in. It is kept where it
      lowers the whole objective. 0 is the paper.
    - ``learning_rate`` is 0.2 where the paper has 0.1, for the same batches.
    - ``initialization="normal"`` is the paper; "uniform" starts inside the bounds.
    - Under noise of a known size the total variation weighs what the prior says it should (see
      :func:`smoothness_weight`), and inner tensors count fully: the most probable images given the
      release, if neighbouring pixels differ by a Laplace variable.
    - ``batch_norm_weight`` adds the distance of batch-norm statistics (Yin et al. 2021, Eq. 8) if
      the release carries buffers; the paper has no such term.

    All restarts run as one batch; the one with the lowest objective is returned. Confidence is
    the cosine between the simulated and the released gradient, not below 0: one value for the
    whole batch.
    """

    iterations: int = 600
    restarts: int = 1
    learning_rate: float = 0.2
    total_variation: float = 1e-6
    inner_weight: float = 0.3
    polish: float = 0.15
    signed: bool = True
    batch_norm_weight: float = 0.0
    initialization: Literal["normal", "uniform"] = "uniform"

    name = "Inverting Gradients"
    summary = "matches the gradient's direction by signed Adam, then L-BFGS"
    needs = "the model and the batch size"
    cites = (
        "Geiping, Bauermeister, Dröge, Moeller 2020, Inverting Gradients: How easy is it to break "
        "privacy in federated learning?, Eq. 4"
    )
    reads = (GradientRelease, UpdateRelease)

    def __post_init__(self) -> None:
        if min(self.iterations, self.restarts) < 1:
            raise BadInput("Inverting Gradients needs at least one iteration and one restart.")
        if self.learning_rate <= 0:
            raise BadInput(f"The learning rate is positive, not {self.learning_rate}.")
        if min(self.total_variation, self.inner_weight, self.batch_norm_weight) < 0:
            raise BadInput("Weights of total variation, inner tensors and batch norm are not < 0.")
        if not 0 <= self.polish <= 1:
            raise BadInput(f"The share of polishing lies in 0 … 1, not {self.polish}.")
        if self.initialization not in ("normal", "uniform"):
            raise BadInput(f"Candidates start 'normal' or 'uniform', not {self.initialization!r}.")

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
        noisy = matching.noise_share > 0
        distance = _weighted(matching, 1.0 if noisy else self.inner_weight)

        def simulate(x: Tensor, *, functional: bool) -> Tensor:
            return matching.simulated(x, targets, functional=functional)

        stack = Stack(simulate, distance, self._penalty(matching, size))
        start = matching.drawn(
            (self.restarts, size, *public.space.shape), self.initialization, generator
        )
        polishing = round(self.polish * self.iterations)
        x, objective, stopped = self._descend(matching, stack, start, self.iterations - polishing)
        if polishing and not stopped:
            bare = Stack(simulate, distance)
            bare.vectorized = stack.vectorized
            polished, stopped = self._polish(bare, x, polishing)
            polished = matching.clipped(polished)
            lower, _ = stack(polished)
            x, objective = _better(polished, lower, x, objective)
        best = int(objective.argmin())
        stopped = stopped or self._told(self.iterations, objective)
        simulated = simulate(x[best], functional=False).detach()
        remaining, _ = cosine_distance(simulated[None], matching.observed)
        explained = 1.0 - float(remaining)
        info: dict[str, str | int | float | bool] = {"labels": origin, "restarts": self.restarts}
        if not stack.vectorized:
            info["restarts run"] = "one after another: vmap cannot handle this model"
        if stopped:
            info["interrupted"] = True
        finite = bool(torch.isfinite(objective[best]))
        return Reconstruction(
            x[best],
            labels,
            torch.full((size,), max(0.0, explained) if finite else 0.0),
            float(remaining) if finite else None,
            not finite,
            info,
        )

    def _penalty(self, matching: Matching, size: int) -> Callable[[Tensor], Tensor] | None:
        """Weighted total variation and batch-norm statistics of one restart, where they apply."""
        public, terms = matching.public, []
        smoothness = self.total_variation
        if isinstance(public.space, ImageSpace) and matching.noise_share > 0:
            smoothness = max(smoothness, smoothness_weight(matching, size))
        if smoothness and isinstance(public.space, ImageSpace):
            terms.append((smoothness, total_variation))
        if self.batch_norm_weight and matching.release.buffers:
            statistics = statistics_penalty(public.simulator, matching.release.buffers)
            if statistics is not None:
                terms.append((self.batch_norm_weight, statistics))
        if not terms:
            return None
        return lambda x: torch.stack([weight * term(x) for weight, term in terms]).sum()

    def _descend(
        self, matching: Matching, stack: Stack, x: Tensor, steps: int
    ) -> tuple[Tensor, Tensor, bool]:
        """Best iterates (restarts, batch, *shape) of projected Adam, and their objectives."""
        first, second = torch.zeros_like(x), torch.zeros_like(x)
        best_x = x = matching.clipped(x)
        best = torch.full((len(x),), float("inf"), dtype=x.dtype, device=x.device)
        if not steps:
            return best_x, best, False
        for step in range(steps):
            values, (slope,) = stack(x)
            best_x, best = _better(x, values, best_x, best)
            if step % REPORT_EVERY == 0 and self._told(step, best):
                return best_x, best, True
            if self.signed:
                slope = slope.sign_()
            rate = self.learning_rate * 0.1 ** sum(8 * step >= steps * part for part in (3, 5, 7))
            first.lerp_(slope, 1 - FIRST_MOMENT)
            second.mul_(SECOND_MOMENT).addcmul_(slope, slope, value=1 - SECOND_MOMENT)
            scale = (second / (1 - SECOND_MOMENT ** (step + 1))).sqrt_().add_(1e-8)
            x = torch.addcdiv(x, first, scale, value=-rate / (1 - FIRST_MOMENT ** (step + 1)))
            x = matching.clipped(x)
        values, _ = stack(x)
        return *_better(x, values, best_x, best), False

    def _polish(self, stack: Stack, x: Tensor, steps: int) -> tuple[Tensor, bool]:
        """Continue with L-BFGS, without bounds: an objective it cannot leave is its own bound."""

        def evaluate(points: Tensor) -> tuple[Tensor, Tensor]:
            values, (slopes,) = stack(points.reshape(x.shape))
            return values, slopes.flatten(1)

        search, done = BatchedLBFGS(evaluate, x.flatten(1)), self.iterations - steps
        for step in range(steps):
            search.step()
            if step % REPORT_EVERY == 0 and self._told(done + step, search.values):
                return search.points.to(x).reshape(x.shape), True
        return search.points.to(x).reshape(x.shape), False

    def _told(self, done: int, values: Tensor) -> bool:
        """Tell whoever watches; return whether to stop."""
        watched = progress.watched()
        return watched and progress.report(done, self.iterations, float(values.min()))


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels of images (…, height, width).

    Rudin, Osher and Fatemi 1992, anisotropic; the mean over each direction, summed, as in the
    authors' code.
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
    return matching.noise_share * pixels / max(scale, 1e-6)


def _weighted(matching: Matching, inner: float) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Cosine distance to the release with inner tensors weighed down."""
    if inner == 1.0:
        return cosine_distance_to(matching.observed)
    weights = matching.weights(inner)
    to_weighted = cosine_distance_to(matching.observed * weights)

    def distance(found: Tensor) -> tuple[Tensor, Tensor]:
        values, slopes = to_weighted(found * weights)
        return values, slopes.mul_(weights)

    return distance


def _better(x: Tensor, values: Tensor, best_x: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
    """Keep the lower of two objectives (restarts,), restart by restart; NaN is never lower."""
    lower = values < best
    mask = lower.reshape(-1, *[1] * (x.dim() - 1))
    return torch.where(mask, x, best_x), torch.where(lower, values, best)
