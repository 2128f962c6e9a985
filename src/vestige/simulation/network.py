"""A trained network, as a function of the one record that is not known."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from vestige.errors import BadInput
from vestige.records import Records
from vestige.simulation.dp_sgd import ClippedNoise
from vestige.simulation.local_training import LocalTraining, unrolled_sgd
from vestige.simulation.releases import ModelRelease
from vestige.simulation.simulator import Simulator, beside


@dataclass(frozen=True, kw_only=True)
class NetworkSimulator(Simulator):
    """Parameters after training by SGD, with ``clipped_noise`` by DP-SGD on the full batch.

    ``companions`` are known records that take part in every run before the given ones. With
    ``fresh_initialization`` every run draws its own initial weights: those of ``model`` are then
    only an example (see ``started``).
    """

    companions: Records
    local: LocalTraining
    clipped_noise: ClippedNoise | None = None
    fresh_initialization: bool = False

    releases = ModelRelease

    def __call__(self, x: Tensor, targets: Tensor, *, functional: bool = True) -> dict[str, Tensor]:
        """Parameters after training on the companions and then x, unrolled and differentiable."""
        x, targets = beside(self.companions, x, targets)
        return unrolled_sgd(self, self.local, self.clipped_noise, x, targets, functional=functional)

    def started(self, generator: torch.Generator) -> Self:
        """The simulator of one run, whose initial weights are the first thing it draws."""
        if not self.fresh_initialization:
            return self
        return replace(self, model=reinitialized(self.model, generator), fresh_initialization=False)


def reinitialized(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy with new weights, drawn by each layer's own reset_parameters."""
    seed = int(torch.randint(2**62, (), generator=generator))
    drawn = copy.deepcopy(model)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for module in drawn.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
            elif any(True for _ in module.parameters(recurse=False)):
                raise BadInput(
                    f"{type(module).__name__} has no reset_parameters, so its initial weights "
                    "cannot be drawn again: add that method, or use known initial weights."
                )
    return drawn
