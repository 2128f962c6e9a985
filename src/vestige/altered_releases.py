"""What clients send of given records, altered as it leaves: the simulator's own client."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vestige.alterations import ClientMemory, flat, mean_over_clients, shaped
from vestige.simulation import Simulator


def sent_tensors(
    simulator: Simulator, x: Tensor, targets: Tensor, *, update: bool, generator: torch.Generator
) -> dict[str, Tensor]:
    """The mean over the clients of what each sends for its part of the records x (n, *shape).

    Records are clipped, private noise is drawn, and alterations are those that are sent, not those
    that a reader expects; clients remember nothing of earlier rounds.
    """
    plain, like = replace(simulator, alterations=(), clients=1), simulator.parameters
    local = simulator.local if update else None
    sizes = [value.numel() for value in like.values()]

    def computed(part: Tensor, taught: Tensor) -> dict[str, Tensor]:
        found = (plain.gradient if local is None else plain.update)(part, taught)
        tensors = {name: found[name].detach() for name in like}
        deviation = plain.reading(found, update=update, records=len(part)).deviation
        if float(torch.as_tensor(deviation).max()) > 0:
            whole = flat(tensors)
            noise = torch.randn(whole.shape, generator=generator).to(whole)
            tensors = shaped(whole + deviation * noise, like)
        return tensors

    def altered(gradient: Tensor) -> Tensor:
        for alteration in simulator.alterations:
            gradient = alteration.sent(gradient, sizes, generator=generator, memory=ClientMemory())
        return gradient

    scale = 1.0 if local is None else -1 / local.learning_rate
    return mean_over_clients(computed, altered, (x, targets), simulator.clients, scale)
