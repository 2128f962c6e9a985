"""Limited-memory BFGS for many independent problems at once.

Nocedal and Wright, Numerical Optimization (2006): Algorithm 7.4 with the compact form of the
inverse Hessian (Theorem 7.4 and Byrd, Nocedal and Schnabel 1994, Eq. 3.1), which turns the two
loops over the history into a few batched matrix products, and a line search for the weak Wolfe
conditions by doubling and bisection (Lewis and Overton 2013, Algorithm 2.6). Every problem has
its own history, direction and step length; a problem whose step is accepted continues with its next
direction while another still searches, so no evaluation waits for the slowest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Points (problems, n) → values (problems,) and gradients (problems, n)."""

# Nocedal and Wright 2006, page 62.
SUFFICIENT_DECREASE = 1e-4
CURVATURE = 0.9
# A step this often halved or doubled in vain ends the search; the history is then forgotten.
SEARCHES = 20


@dataclass
class BatchedLBFGS:
    """State of all problems. ``points`` and ``values`` never get worse.

    The state is kept in double precision whatever the precision of the evaluations: differences
    of nearby gradients lose most of their digits.
    """

    evaluate: Evaluate
    points: Tensor
    history: int = 50
    values: Tensor = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        problems, size = self.points.shape
        self._type = self.points.dtype
        wide = {"dtype": torch.float64, "device": self.points.device}
        self.points = self.points.to(torch.float64).clone()
        self._steps = torch.zeros(problems, self.history, size, **wide)
        self._changes = torch.zeros(problems, self.history, size, **wide)
        self._products = torch.zeros(problems, self.history, self.history, **wide)
        self._gram = torch.zeros(problems, self.history, self.history, **wide)
        self._scale = torch.ones(problems, **wide)
        self._length = torch.ones(problems, **wide)
        self._lower = torch.zeros(problems, **wide)
        self._upper = torch.full((problems,), float("inf"), **wide)
        self._searches = torch.zeros(problems, **wide)
        self.values, self.gradients = self._at(self.points)
        self._aim(torch.ones(problems, dtype=torch.bool, device=self.points.device))

    def _at(self, points: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = self.evaluate(points.to(self._type))
        return values.to(torch.float64), gradients.to(torch.float64)

    def replace(self, which: Tensor, points: Tensor) -> None:
        """Start the problems in a mask (problems,) again from new points (problems, n)."""
        self.points = torch.where(which[:, None], points.to(torch.float64), self.points)
        values, gradients = self._at(self.points)
        self.values = torch.where(which, values, self.values)
        self.gradients = torch.where(which[:, None], gradients, self.gradients)
        self._forget(which)
        self._aim(which)

    def step(self) -> None:
        """Evaluate every problem once."""
        trial = self.points + self._length[:, None] * self._direction
        values, gradients = self._at(trial)
        finite = values.isfinite() & gradients.isfinite().all(1)
        slope = (gradients * self._direction).sum(1)
        low_enough = finite & (
            values <= self.values + SUFFICIENT_DECREASE * self._length * self._slope
        )
        flat_enough = slope >= CURVATURE * self._slope
        accepted = low_enough & flat_enough
        self._searches = self._searches + 1
        # Out of patience: take what has come down, forget the history, try steepest descent.
        tired = ~accepted & (self._searches >= SEARCHES)
        moves = accepted | (tired & low_enough)
        self._remember(accepted, trial - self.points, gradients - self.gradients)
        self._forget(tired)
        self._upper = torch.where(low_enough, self._upper, self._length)
        self._lower = torch.where(low_enough, self._length, self._lower)
        middle = (self._lower + self._upper) / 2
        self._length = torch.where(self._upper.isfinite(), middle, 2 * self._lower)
        self.points = torch.where(moves[:, None], trial, self.points)
        self.values = torch.where(moves, values, self.values)
        self.gradients = torch.where(moves[:, None], gradients, self.gradients)
        self._aim(accepted | tired)

    def _remember(self, which: Tensor, steps: Tensor, changes: Tensor) -> None:
        """Append a pair to the history of the problems in a mask, oldest first."""
        curvature = (steps * changes).sum(1)
        which = which & (curvature > 1e-12 * steps.norm(dim=1) * changes.norm(dim=1))
        if not bool(which.any()):
            return
        mask = which[:, None, None]
        self._steps = torch.where(mask, _shifted(self._steps, steps), self._steps)
        self._changes = torch.where(mask, _shifted(self._changes, changes), self._changes)
        self._scale = torch.where(which, curvature / changes.square().sum(1), self._scale)
        # Only the products with the newest pair are new; below the diagonal none is ever read.
        new_products = _bordered(self._products, self._steps, changes)
        new_gram = _bordered(self._gram, self._changes, changes)
        new_gram[:, -1, :-1] = new_gram[:, :-1, -1]
        self._products = torch.where(mask, new_products, self._products)
        self._gram = torch.where(mask, new_gram, self._gram)

    def _forget(self, which: Tensor) -> None:
        """Empty the history of the problems in a mask."""
        if not bool(which.any()):
            return
        keep = ~which[:, None, None]
        self._steps = self._steps * keep
        self._changes = self._changes * keep
        self._products = self._products * keep
        self._gram = self._gram * keep
        self._scale = torch.where(which, torch.ones_like(self._scale), self._scale)

    def _aim(self, which: Tensor) -> None:
        """Give the problems in a mask a new direction and a fresh search along it."""
        if not bool(which.any()):
            return
        gradient = self.gradients[:, :, None]
        diagonal = self._products.diagonal(dim1=1, dim2=2)
        empty = diagonal <= 0
        # An empty place holds zeros; a one on the diagonal makes it drop out of the solve.
        upper = self._products.triu() + torch.diag_embed(empty.to(diagonal))
        scale = self._scale[:, None, None]
        along_steps, along_changes = self._steps @ gradient, self._changes @ gradient
        inner = torch.linalg.solve_triangular(upper, along_steps, upper=True)
        outer = diagonal[:, :, None] * inner + scale * (self._gram @ inner - along_changes)
        first = torch.linalg.solve_triangular(upper.mT, outer, upper=False)
        product = scale * gradient + self._steps.mT @ first - scale * (self._changes.mT @ inner)
        direction = -product[:, :, 0]
        slope = (direction * self.gradients).sum(1)
        norm = self.gradients.norm(dim=1)
        bad = ~(slope < 0) | ~direction.isfinite().all(1) | empty.all(1)
        # Without history the length of a direction means nothing: go one unit.
        steepest = -self.gradients / norm.clamp_min(1e-300)[:, None]
        direction = torch.where(bad[:, None], steepest, direction)
        slope = torch.where(bad, -norm, slope)
        if not hasattr(self, "_direction"):
            self._direction, self._slope = direction, slope
        self._direction = torch.where(which[:, None], direction, self._direction)
        self._slope = torch.where(which, slope, self._slope)
        self._length = torch.where(which, torch.ones_like(norm), self._length)
        self._lower = torch.where(which, torch.zeros_like(norm), self._lower)
        self._upper = torch.where(which, torch.full_like(norm, float("inf")), self._upper)
        self._searches = torch.where(which, torch.zeros_like(norm), self._searches)


def _shifted(history: Tensor, newest: Tensor) -> Tensor:
    """Drop the oldest entry of (problems, history, n) and append the newest."""
    return torch.cat([history[:, 1:], newest[:, None]], 1)


def _bordered(matrix: Tensor, rows: Tensor, newest: Tensor) -> Tensor:
    """Shift (problems, history, history) up and left, and append the column rows · newest."""
    shifted = torch.nn.functional.pad(matrix[:, 1:, 1:], (0, 1, 0, 1))
    shifted[:, :, -1] = (rows @ newest[:, :, None])[:, :, 0]
    return shifted
