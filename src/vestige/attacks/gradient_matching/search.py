"""The search behind gradient matching: projected Adam that something may guide, then a polish."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vestige import progress
from vestige.attacks.gradient_matching.gradient_distances import tensorwise_cosine
from vestige.attacks.gradient_matching.lbfgs import BatchedLBFGS
from vestige.attacks.gradient_matching.matching import (
    Matching,
    cosine_distance,
    cosine_distance_to,
)
from vestige.attacks.gradient_matching.patience import Patience
from vestige.attacks.gradient_matching.restarts import Stack
from vestige.attacks.gradient_matching.smoothness import unit
from vestige.interfaces import Reconstruction

REPORT_EVERY = 10
# Kingma and Ba 2015, as in torch.optim.Adam, which the authors' code uses.
FIRST_MOMENT, SECOND_MOMENT = 0.9, 0.999
# Share of the learning rate that is left in the last step.
LEAST_RATE = 1e-3
SHARPENING, SHARPENING_RATE = 0.5, 0.1
"""Share of the polish that is Adam without a guide, and its share of the learning rate."""
PROMISING, EXPLAINED = 1e-5, 1e-7
"""Distances below which sharpened images are polished further, and at last kept.

On faces and digits, solved releases ended at 1e-8 to 1e-14 and others above 1e-6; there, sharp
images explain the release no better for being sharp. Images of a prior that is hardly
smoother than noise are kept where the distance falls by its smoothness in powers of ten.
"""

Guide = Callable[[Tensor, Tensor, int, int], Tensor]
"""(slope of the distance, candidates, both (restarts, batch, *shape), step, steps) → the slope that
the step follows: that of the distance with that of a regulariser, in a ratio of its choice."""


@dataclass(frozen=True)
class Found:
    """Best candidates (restarts, batch, *shape), and their objectives (restarts,).

    ``vectorized`` says that restarts ran as one batch; ``stopped`` that the search ended early, for
    which ``remark`` gives the reason unless a listener asked for it.
    """

    x: Tensor
    objective: Tensor
    vectorized: bool
    stopped: bool
    remark: str = ""


@dataclass(frozen=True)
class Search:
    """Candidates whose simulated release has the direction of the released one.

    ``targets`` (batch, classes) of the candidates. The distance is 1 − cosine, with inner tensors
    weighed by ``inner_weight``, and for ``tensor_share`` of it each tensor's own. ``penalty`` of
    one restart's candidates is added to it. ``polish`` of the ``iterations`` match without a guide;
    with a ``posterior`` they minimise it beside the plain cosine, which is the likelihood under
    noise as large in every tensor. ``patience`` is the share of the iterations after which a search
    ends whose distance is still that of unrelated images (see :mod:`.patience`).
    """

    matching: Matching
    targets: Tensor
    iterations: int
    learning_rate: float
    tensor_share: float
    inner_weight: float
    polish: float
    signed: bool = False
    penalty: Callable[[Tensor], Tensor] | None = None
    posterior: Callable[[Tensor], Tensor] | None = None
    patience: float = 0.0

    def run(self, start: Tensor, guide: Guide | None = None, powers: float = 0.0) -> Found:
        """Search from starting points (restarts, batch, *shape).

        Adam follows the guide; the polish does not. Its result replaces guided candidates only
        where it explains the release: where the distance falls to rounding, or by ``powers`` of
        ten. Without a guide the lower objective is kept, and with a posterior its minimum.
        """
        stack = Stack(self.simulate, self._distance(), self.penalty)
        polishing = round(self.polish * self.iterations)
        patience = Patience.of(
            self.patience, self.iterations, self.matching, stack, len(self.targets)
        )
        x, objective, stopped = self._descend(
            stack, start, self.iterations - polishing, guide, patience=patience
        )
        if polishing and not stopped and self.posterior is not None:
            x, objective, stopped = self._most_probable(stack, x, polishing)
        elif polishing and not stopped:
            bare = Stack(self.simulate, self._joint_distance())
            bare.vectorized = stack.vectorized
            guided = guide is not None
            polished, stopped = self._polish(bare, x, polishing, powers if guided else None)
            lower, _ = stack(polished)
            if guided:
                wanted = _wanted(bare(x)[0], EXPLAINED, powers)
                lower = torch.where(bare(polished)[0] < wanted, lower, math.inf)
            x, objective = keep_better(polished, lower, x, objective)
        stopped = stopped or self._report(self.iterations, objective)
        remark = "" if patience is None else patience.remark
        return Found(x, objective, stack.vectorized, stopped, remark)

    def reconstruction(self, found: Found, labels: Tensor, origin: str) -> Reconstruction:
        """The restart of lowest objective, with the cosine to the release as its confidence."""
        best = int(found.objective.argmin())
        simulated = self.simulate(found.x[best], functional=False).detach()
        remaining, _ = cosine_distance(simulated[None], self.matching.observed)
        explained = 1.0 - float(remaining)
        restarts, size = found.x.shape[:2]
        info: dict[str, str | int | float | bool] = {"labels": origin, "restarts": restarts}
        if not found.vectorized:
            info["restarts run"] = "one after another: vmap cannot handle this model"
        if found.stopped and not found.remark:
            info["interrupted"] = True
        finite = bool(torch.isfinite(found.objective[best]))
        return Reconstruction(
            found.x[best],
            labels,
            torch.full((size,), max(0.0, explained) if finite else 0.0),
            float(remaining) if finite else None,
            not finite,
            info,
            found.remark,
        )

    def simulate(self, x: Tensor, *, functional: bool) -> Tensor:
        """What candidates (batch, *shape) would have released."""
        return self.matching.simulated(x, self.targets, functional=functional)

    def _distance(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """One cosine with inner tensors weighed down, and each tensor's own."""
        joint, share = self._joint_distance(), self.tensor_share
        if share == 0:
            return joint
        own = tensorwise_cosine(self.matching, "entries")

        def distance(simulated: Tensor) -> tuple[Tensor, Tensor]:
            values, slopes = joint(simulated)
            own_values, own_slopes = own(simulated)
            slopes = slopes.mul_(1 - share).add_(own_slopes, alpha=share)
            return values * (1 - share) + own_values * share, slopes

        return distance

    def _joint_distance(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """One cosine of all tensors, inner ones weighed down."""
        return _weighted(self.matching, self.inner_weight)

    def _descend(
        self,
        stack: Stack,
        x: Tensor,
        steps: int,
        guide: Guide | None = None,
        *,
        rate: float = 1.0,
        done: int = 0,
        patience: Patience | None = None,
        shown: bool = True,
    ) -> tuple[Tensor, Tensor, bool]:
        """Best iterates (restarts, batch, *shape) of projected Adam, and their objectives.

        ``rate`` multiplies the learning rate; ``done`` iterations came before. Frames are ``shown``
        unless the search might not return what it finds here.
        """
        first, second = torch.zeros_like(x), torch.zeros_like(x)
        best_x = x = self.matching.clipped(x)
        best = torch.full((len(x),), float("inf"), dtype=x.dtype, device=x.device)
        if not steps:
            return best_x, best, False
        due = progress.frames_due(self.iterations) if shown else frozenset()
        for step in range(steps):
            values, (slope,) = stack(x)
            best_x, best = keep_better(x, values, best_x, best)
            if done + step in due:
                progress.show_frame(done + step, self.iterations, best_x[int(best.argmin())])
            if step % REPORT_EVERY == 0 and self._report(done + step, best):
                return best_x, best, True
            if patience is not None and patience.exhausted(step, best):
                return best_x, best, True
            if guide is not None:
                slope = guide(slope, x, step, steps)
            slope = slope.sign_() if self.signed else unit(slope)
            first.lerp_(slope, 1 - FIRST_MOMENT)
            second.mul_(SECOND_MOMENT).addcmul_(slope, slope, value=1 - SECOND_MOMENT)
            scale = (second / (1 - SECOND_MOMENT ** (step + 1))).sqrt_().add_(1e-12)
            length = rate * self._rate(step, steps) / (1 - FIRST_MOMENT ** (step + 1))
            x = self.matching.clipped(torch.addcdiv(x, first, scale, value=-length))
        values, _ = stack(x)
        return *keep_better(x, values, best_x, best), False

    def _rate(self, step: int, steps: int) -> float:
        if self.signed:
            return self.learning_rate * 0.1 ** sum(8 * step >= steps * part for part in (3, 5, 7))
        return self.learning_rate * (LEAST_RATE + (1 + math.cos(math.pi * step / steps)) / 2)

    def _polish(
        self, bare: Stack, x: Tensor, steps: int, powers: float | None
    ) -> tuple[Tensor, bool]:
        """Candidates (restarts, batch, *shape) of lowest distance near x, and whether to stop.

        Guided images first give up what the guide gave them by Adam: L-BFGS alone would stop at the
        first kink of the network. Where that does not nearly explain the release, the rest is
        saved. ``powers`` is None for candidates that nothing guided.
        """
        if powers is not None:
            first = round(SHARPENING * steps)
            wanted = _wanted(bare(x)[0], PROMISING, powers - 1)
            done = self.iterations - steps
            x, values, stopped = self._descend(
                bare, x, first, rate=SHARPENING_RATE, done=done, shown=False
            )
            if stopped or not bool((values < wanted).any()):
                return x, stopped
            steps -= first
        return self._to_bottom(bare, x, steps, shown=powers is None)

    def _most_probable(self, stack: Stack, x: Tensor, steps: int) -> tuple[Tensor, Tensor, bool]:
        """Candidates (restarts, batch, *shape) near x that are most probable given the release.

        Those of the lowest cosine distance and posterior penalty, with their objectives and whether
        to stop: Adam first, as the penalty has kinks, then L-BFGS.
        """
        last = Stack(self.simulate, cosine_distance_to(self.matching.observed), self.posterior)
        last.vectorized = stack.vectorized
        first = round(SHARPENING * steps)
        x, values, stopped = self._descend(
            last, x, first, rate=SHARPENING_RATE, done=self.iterations - steps
        )
        if stopped:
            return x, values, True
        lower, stopped = self._to_bottom(last, x, steps - first)
        return *keep_better(lower, last(lower)[0], x, values), stopped

    def _to_bottom(
        self, stack: Stack, x: Tensor, steps: int, *, shown: bool = True
    ) -> tuple[Tensor, bool]:
        """The bottom (restarts, batch, *shape) of the basin of x by L-BFGS, and whether to stop."""

        def evaluate(points: Tensor) -> tuple[Tensor, Tensor]:
            values, (slopes,) = stack(points.reshape(x.shape))
            return values, slopes.flatten(1)

        # Without bounds: an objective that it cannot leave is its own bound.
        search, done, stopped = BatchedLBFGS(evaluate, x.flatten(1)), self.iterations - steps, False
        due = progress.frames_due(self.iterations) if shown else frozenset()
        for step in range(steps):
            if done + step in due:
                point = search.points[int(search.values.argmin())].to(x).reshape(x.shape[1:])
                progress.show_frame(done + step, self.iterations, self.matching.clipped(point))
            search.step()
            if step % REPORT_EVERY == 0 and self._report(done + step, search.values):
                stopped = True
                break
        return self.matching.clipped(search.points.to(x).reshape(x.shape)), stopped

    def _report(self, done: int, values: Tensor) -> bool:
        """Report progress; return whether to stop."""
        watched = progress.has_listener()
        return watched and progress.report(done, self.iterations, float(values.min()))


def keep_better(x: Tensor, values: Tensor, best_x: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
    """Keep the lower of two objectives (restarts,), restart by restart; NaN is never lower."""
    lower = values < best
    mask = lower.reshape(-1, *[1] * (x.dim() - 1))
    return torch.where(mask, x, best_x), torch.where(lower, values, best)


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
