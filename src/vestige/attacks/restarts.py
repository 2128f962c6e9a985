"""Many restarts of one attack as one computation: values and slopes of R problems at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Scalar = Callable[..., Tensor]
"""Variables of one restart → its objective, a scalar; differentiable."""


class Stack:
    """Evaluates a scalar function and its gradient for a stack of restarts.

    Variables carry the restarts in their first dimension. Restarts share the network, so one
    vectorised call costs far less than a loop. A single restart runs under plain autograd, which
    is cheaper than ``vmap`` over one. Functions that ``vmap`` cannot handle run in a loop, and
    ``vectorized`` says so.
    """

    def __init__(self, function: Scalar) -> None:
        self.function = function
        self.vectorized = True

    def __call__(self, *variables: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Values (restarts,) and the gradient for each variable, all detached."""
        if variables[0].shape[0] > 1 and self.vectorized:
            try:
                return self._all(*variables)
            except (RuntimeError, NotImplementedError):
                # What cannot run in the loop either says so there.
                self.vectorized = False
        rows = [self._one(*(v[row] for v in variables)) for row in range(variables[0].shape[0])]
        values = torch.stack([value for value, _ in rows])
        return values, tuple(torch.stack(slopes) for slopes in zip(*(row[1] for row in rows)))

    def _all(self, *variables: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        leaves = [v.detach().requires_grad_() for v in variables]
        values = torch.func.vmap(self.function)(*leaves)
        return values.detach(), torch.autograd.grad(values.sum(), leaves)

    def _one(self, *variables: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        leaves = [v.detach().requires_grad_() for v in variables]
        value = self.function(*leaves)
        return value.detach(), torch.autograd.grad(value, leaves)
