"""What clients send of given records, altered as it leaves: the simulator's own client."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vestige.alterations import ClientMemory, flat, shaped
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
    scale = 1.0 if local is None else -1 / local.learning_rate
    sizes = [value.numel() for value in like.values()]
    sent = []
    for part, taught in zip(x.chunk(simulator.clients), targets.chunk(simulator.clients)):
        computed = (plain.gradient if local is None else plain.update)(part, taught)
        gradient = flat({name: computed[name] for name in like}).detach() * scale
        deviation = plain.reading(computed, update=update, records=len(part)).deviation
        if float(torch.as_tensor(deviation).max()) > 0:
            noise = torch.randn(gradient.shape, generator=generator).to(gradient)
            gradient = gradient + abs(scale) * deviation * noise
        for alteration in simulator.alterations:
            gradient = alteration.sent(gradient, sizes, generator=generator, memory=ClientMemory())
        sent.append(gradient)
    return shaped(torch.stack(sent).mean(0) / scale, like)
