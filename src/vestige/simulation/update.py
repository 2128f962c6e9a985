"""The update after local training, as a function of the records behind it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vestige.simulation.local_training import LocalTraining, unrolled_sgd
from vestige.simulation.releases import UpdateRelease
from vestige.simulation.simulator import ClientSimulator


@dataclass(frozen=True, kw_only=True)
class UpdateSimulator(ClientSimulator):
    """New minus old parameters after training by SGD, altered as the gradient it stands for."""

    local: LocalTraining

    releases = UpdateRelease

    @property
    def steps(self) -> int:
        """Local steps of each client."""
        return self.local.steps

    @property
    def step_scale(self) -> float:
        """What turns a gradient into the step along it."""
        return -self.local.learning_rate

    @property
    def gradient_scale(self) -> float:
        """What turns a gradient into the release, if it were the same at every step."""
        return -self.local.length

    def unaltered(
        self, x: Tensor, targets: Tensor, *, functional: bool = True
    ) -> dict[str, Tensor]:
        """The update of one client before it is altered."""
        trained = unrolled_sgd(
            self, self.local, self.clipped_noise, x, targets, functional=functional
        )
        return {n: trained[n] - p for n, p in self.parameters.items()}

    def summed_noise(self, records: int) -> float:
        """Deviation of the summed steps if each clipped sum has unit noise, over learning rates."""
        return self.local.summed_noise(records, mean=self.reduction == "mean")
