"""One gradient, as a function of the records behind it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.simulation.dp_sgd import clipped_gradient
from vestige.simulation.local_training import LocalTraining, gradient_of
from vestige.simulation.losses import logits_of
from vestige.simulation.refusals import refusing
from vestige.simulation.releases import GradientRelease
from vestige.simulation.second_derivatives import twice_differentiable
from vestige.simulation.simulator import ClientSimulator


@dataclass(frozen=True)
class GradientSimulator(ClientSimulator):
    """The gradient of one batch at the released parameters."""

    releases = GradientRelease

    def unaltered(
        self, x: Tensor, targets: Tensor, *, functional: bool = True
    ) -> dict[str, Tensor]:
        """The gradient of one client before it is altered."""
        if self.clipped_noise is not None:
            return clipped_gradient(self, self.clipped_noise, self.parameters, x, targets)
        if functional:
            return torch.func.grad(self.loss_of)(self.parameters, x, targets)
        own = {n: p for n, p in self.network.named_parameters() if p.requires_grad}
        with refusing():
            with twice_differentiable():
                losses = self.loss(logits_of(self.network(self.inputs(x))), targets)
            return gradient_of(self.reduced(losses), own)

    def summed_noise(self, records: int) -> float:
        """Deviation of the released noise if each clipped sum has unit noise."""
        return LocalTraining(1, 1.0).summed_noise(records, mean=self.reduction == "mean")
