"""What clients send of given records, as it leaves: with noise, and altered."""

from __future__ import annotations

import torch
from torch import Tensor

from vestige.simulation.alterations import ClientMemory, join_tensors, split_like
from vestige.simulation.simulator import ClientSimulator


def sent_tensors(
    simulator: ClientSimulator, x: Tensor, targets: Tensor, *, generator: torch.Generator
) -> dict[str, Tensor]:
    """The mean over the clients of what each sends for its part of the records x (n, *shape).

    Records are clipped, private noise is drawn, and alterations are those that are sent, not those
    that a reader expects; clients remember nothing of earlier rounds.
    """
    like = simulator.parameters
    sizes = [value.numel() for value in like.values()]

    def computed(part: Tensor, taught: Tensor) -> dict[str, Tensor]:
        found = simulator.unaltered(part, taught)
        tensors = {name: found[name].detach() for name in like}
        deviation = abs(simulator.step_scale) * simulator.private_deviation(len(part))
        if deviation > 0:
            whole = join_tensors(tensors)
            noise = torch.randn(whole.shape, generator=generator).to(whole)
            tensors = split_like(whole + deviation * noise, like)
        return tensors

    def altered(gradient: Tensor) -> Tensor:
        for alteration in simulator.alterations:
            gradient = alteration.sent(gradient, sizes, generator=generator, memory=ClientMemory())
        return gradient

    return simulator.mean_of(computed, altered, x, targets)
