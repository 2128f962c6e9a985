"""Adam over whatever draws the candidates, and L-BFGS on the candidates themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from vestige import progress
from vestige.attacks.gradient_matching.lbfgs import BatchedLBFGS

if TYPE_CHECKING:
    from vestige.attacks.combined_inversion.images import Images
    from vestige.attacks.gradient_matching.restarts import Stack

REPORT_EVERY = 10
Schedule = Literal["steps", "cosine"]
Take = Callable[[int, Callable[[], Tensor]], None]
"""Called with a number of steps and a function that returns the candidates (b, *shape) then."""


@dataclass
class Minimum:
    """Best candidates (b, *shape) so far and their objective."""

    x: Tensor
    objective: float = math.inf
    stopped: bool = False

    def keep(self, x: Tensor, objective: float) -> None:
        """Take these candidates if their objective is lower; NaN is never lower."""
        if objective < self.objective:
            self.x, self.objective = x.detach().clone(), objective


def minimize_by_adam(
    images: Images,
    stack: Stack,
    steps: int,
    *,
    learning_rate: float,
    schedule: Schedule = "steps",
    signed: bool = False,
    refresh: Callable[[Tensor], None] | None = None,
    refresh_every: int = 10,
    take: Take | None = None,
) -> Minimum:
    """Best candidates of Adam (Kingma and Ba 2015), by the objective that ``stack`` evaluates.

    ``schedule`` "steps" cuts the rate to a tenth after 3/8, 5/8 and 7/8 of the steps, as published.
    ``refresh`` is called with the candidates before the first step and every few steps; objectives
    before and after it are not comparable, so the best is forgotten then. ``take`` is called with
    the best candidates before each step.
    """
    optimizer = torch.optim.Adam(images.leaves, lr=learning_rate)
    best = Minimum(images().detach().clone())
    for step in range(steps + 1):
        x = images()
        if refresh is not None and step % refresh_every == 0:
            refresh(x.detach())
            best.objective = math.inf
        values, (slope,) = stack(x.detach()[None])
        best.keep(x, float(values[0]))
        if take is not None and step < steps:
            take(step, lambda: best.x)
        if progress.has_listener() and step % REPORT_EVERY == 0:
            best.stopped = progress.report(step, steps, best.objective)
        if step == steps or best.stopped:
            break
        slopes = torch.autograd.grad(x, images.leaves, slope[0])
        for leaf, own in zip(images.leaves, slopes):
            leaf.grad = own.sign() if signed else own
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * _share(schedule, step, steps)
        optimizer.step()
        images.project()
    return best


def minimize_by_lbfgs(stack: Stack, x: Tensor, steps: int, take: Take | None = None) -> Tensor:
    """Candidates x (b, *shape) after L-BFGS, without bounds."""

    def evaluate(points: Tensor) -> tuple[Tensor, Tensor]:
        values, (slopes,) = stack(points.reshape(1, *x.shape))
        return values, slopes.flatten(1)

    search = BatchedLBFGS(evaluate, x.reshape(1, -1))

    def points() -> Tensor:
        return search.points.to(x).reshape(x.shape)

    for step in range(steps):
        if take is not None:
            take(step, points)
        search.step()
    return points()


def _share(schedule: Schedule, step: int, steps: int) -> float:
    if schedule == "cosine":
        return (1 + math.cos(math.pi * step / steps)) / 2
    return 0.1 ** sum(8 * step >= steps * part for part in (3, 5, 7))
