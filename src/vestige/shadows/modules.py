"""Many networks of any kind trained at once by ``torch.func.vmap``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from vestige.simulation.dp_sgd import ClippedNoise
    from vestige.simulation.local_training import LocalTraining
    from vestige.simulation.simulator import Simulator

# Gradients of single records held in memory at a time, as numbers: half a gigabyte of float32.
NUMBERS = 2**27


def train_modules(
    simulator: Simulator,
    training: LocalTraining,
    private: ClippedNoise | None,
    known: tuple[Tensor, Tensor],
    stand_ins: tuple[Tensor, Tensor],
    initial: Mapping[str, Tensor],
    *,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Train s networks; return their parameters by name, each (s, *shape).

    ``known`` holds records (k, *shape) and label targets (k, c), ``stand_ins`` one of each for
    every network, ``initial`` parameters (s, *shape). Batches are consecutive, the stand-in comes
    last. Private steps differentiate every record by itself.
    """

    def total(parameters: dict[str, Tensor], x: Tensor, targets: Tensor) -> Tensor:
        return simulator.loss(simulator.outputs(x, parameters), targets).sum()

    def summed(
        parameters: dict[str, Tensor], x: Tensor, target: Tensor, batch: slice
    ) -> dict[str, Tensor]:
        inputs = torch.cat([known[0], x[None]])[batch]
        targets = torch.cat([known[1], target[None]])[batch]
        if private is None:
            return torch.func.grad(total)(parameters, inputs, targets)

        def alone(one: Tensor, its_target: Tensor) -> dict[str, Tensor]:
            return torch.func.grad(total)(parameters, one[None], its_target[None])

        gradients = torch.func.vmap(alone)(inputs, targets)
        squared = [slope.flatten(1).square().sum(1) for slope in gradients.values()]
        factors = private.factors(torch.stack(squared).sum(0))
        return {n: torch.tensordot(factors, slope, 1) for n, slope in gradients.items()}

    at_once = None
    if private is not None:
        size = sum(value[0].numel() for value in initial.values())
        at_once = max(1, NUMBERS // ((len(known[0]) + 1) * size))
    gradient = torch.func.vmap(summed, in_dims=(0, 0, 0, None), chunk_size=at_once)
    current = {name: value.clone() for name, value in initial.items()}
    speeds = {name: torch.zeros_like(value) for name, value in current.items()}
    for batch in training.batches(len(known[0]) + 1):
        scale = 1.0 / (batch.stop - batch.start) if simulator.reduction == "mean" else 1.0
        for name, slope in gradient(current, *stand_ins, batch).items():
            step = slope.detach() * scale
            if private is not None:
                private.add_noise(step, scale, generator)
            speeds[name].mul_(training.momentum).add_(step)
            current[name].sub_(speeds[name], alpha=training.learning_rate)
    return current
