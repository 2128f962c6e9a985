"""A victim of your own: a client that computes one record's gradient at a time and averages them.

``simulator`` is the same computation for whoever reads the client's code: a reader replays it to
compare candidates with the release, and an audit checks that the two agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vestige import Records
from vestige.interfaces import GradientRelease
from vestige.victims import SharedGradient


@dataclass(frozen=True)
class AccumulatingClient:
    """Accumulates the gradients of its records, as training on a small device does."""

    model: nn.Module

    @property
    def releases(self) -> type[GradientRelease]:
        """A gradient."""
        return GradientRelease

    @property
    def simulator(self) -> Any:
        """The mean gradient of a batch, which is the same."""
        return SharedGradient(self.model, mode="eval").simulator

    def release(self, secret: Records, *, generator: torch.Generator) -> GradientRelease:
        """Return the mean of the records' gradients, by parameter name."""
        named = dict(self.model.named_parameters())
        total = {name: torch.zeros_like(parameter) for name, parameter in named.items()}
        self.model.eval()
        for x, y in zip(secret.x, secret.y):
            loss = nn.functional.cross_entropy(self.model(x[None]), y[None])
            gradients = torch.autograd.grad(loss, list(named.values()))
            for name, gradient in zip(named, gradients):
                total[name] += gradient / len(secret)
        return GradientRelease(total)

    def describe(self) -> dict[str, str]:
        """Settings a reader needs to repeat it."""
        return {"Victim": "AccumulatingClient, mean of the records' gradients"}
