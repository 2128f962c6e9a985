"""Many restarts of one attack as one computation: objectives and slopes of R problems at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from vestige.simulation.refusals import refusing

Simulate = Callable[..., Tensor]
"""Variables of one restart → what they would have released, one vector (n,). Called with the
keyword ``functional``: where it is False, plain autograd may be used."""


class Stack:
    """Evaluates objective = distance(simulate(variables)) + penalty(variables), and its gradient.

    ``distance`` takes what all restarts simulate (restarts, n) and returns values (restarts,) and
    slopes (restarts, n); ``penalty`` takes the variables of one restart and returns a scalar.
    Variables carry the restarts in their first dimension. Restarts share the network, so one
    vectorised call costs far less than a loop. A single restart runs under plain autograd, which
    is cheaper than ``vmap`` over one. What ``vmap`` cannot handle runs in a loop, and
    ``vectorized`` says so.
    """

    def __init__(
        self,
        simulate: Simulate,
        distance: Callable[[Tensor], tuple[Tensor, Tensor]],
        penalty: Callable[..., Tensor] | None = None,
    ) -> None:
        self.simulate = simulate
        self.distance = distance
        self.penalty = penalty
        self.vectorized = True

    def __call__(self, *variables: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Values (restarts,) and the gradient for each variable, all detached."""
        restarts = variables[0].shape[0]
        if restarts > 1 and self.vectorized:
            try:
                return self._together(variables)
            except (RuntimeError, NotImplementedError):
                # What cannot run in the loop either says so there.
                self.vectorized = False
        if restarts == 1:
            return self._alone(variables)
        rows = [self._alone([v[row : row + 1] for v in variables]) for row in range(restarts)]
        gradients = zip(*(gradients for _, gradients in rows))
        return torch.cat([values for values, _ in rows]), tuple(torch.cat(g) for g in gradients)

    def _together(self, variables: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        leaves = [v.detach().requires_grad_() for v in variables]
        with warnings.catch_warnings():
            # An operation without a batching rule is slower, not wrong.
            warnings.filterwarnings("ignore", "There is a performance drop")
            simulated = torch.func.vmap(partial(self.simulate, functional=True))(*leaves)
            penalties = torch.func.vmap(self.penalty)(*leaves) if self.penalty else None
            return self._slopes(leaves, simulated, penalties)

    def _alone(
        self, variables: tuple[Tensor, ...] | list[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        leaves = [v.detach().requires_grad_() for v in variables]
        one = [leaf[0] for leaf in leaves]
        with refusing():
            simulated = self.simulate(*one, functional=False)[None]
            penalties = self.penalty(*one)[None] if self.penalty else None
            return self._slopes(leaves, simulated, penalties)

    def _slopes(
        self, leaves: list[Tensor], simulated: Tensor, penalties: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        values, slopes = self.distance(simulated.detach())
        if penalties is None:
            return values, torch.autograd.grad(simulated, leaves, slopes)
        ends, weights = (simulated, penalties), (slopes, torch.ones_like(penalties))
        return values + penalties.detach(), torch.autograd.grad(ends, leaves, weights)
