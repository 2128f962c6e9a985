"""Releases of records that the attacker has, made as the client makes them, noise and all."""

from __future__ import annotations

from dataclasses import replace

import torch

from vestige.alterations import ClientMemory, flat, shaped
from vestige.observations import GradientRelease, Hints, Observation, Public, UpdateRelease
from vestige.records import Records
from vestige.simulation import one_hot


def simulated_observation(
    public: Public, records: Records, *, generator: torch.Generator
) -> Observation:
    """What the attacker would see of a client that holds these records, labels told.

    The defence is the one that ``public.simulator`` knows: records clipped, private noise drawn,
    alterations as they are sent (not as a reader expects them), and the mean over clients.
    """
    simulator = public.simulator
    plain = replace(simulator, alterations=(), clients=1)
    like = next(iter(simulator.parameters.values()))
    x, y = records.x.to(like), records.y.to(like.device)
    targets = one_hot(y, public.classes, like.dtype)
    update = public.reads is UpdateRelease and simulator.local is not None
    scale = -1 / simulator.local.learning_rate if update and simulator.local else 1.0
    sizes = [value.numel() for value in simulator.parameters.values()]
    sent = []
    for part, taught in zip(x.chunk(simulator.clients), targets.chunk(simulator.clients)):
        tensors = (plain.update if update else plain.gradient)(part, taught)
        gradient = flat(tensors).detach() * scale
        private = plain.reading(tensors, update=update, records=len(part)).deviation
        if float(torch.as_tensor(private).max()) > 0:
            noise = torch.randn(gradient.shape, generator=generator).to(gradient)
            gradient = gradient + abs(scale) * private * noise
        for alteration in simulator.alterations:
            gradient = alteration.sent(gradient, sizes, generator=generator, memory=ClientMemory())
        sent.append(gradient)
    tensors = shaped(torch.stack(sent).mean(0) / scale, simulator.parameters)
    release = UpdateRelease(tensors) if update else GradientRelease(tensors)
    return Observation(release, Hints(batch_size=len(x), labels=records.y.cpu()))
