"""Releases of records that the attacker has, made as the client makes them, noise and all."""

from __future__ import annotations

import torch

from vestige.altered_releases import sent_tensors
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
    like = next(iter(simulator.parameters.values()))
    x, y = records.x.to(like), records.y.to(like.device)
    targets = one_hot(y, public.classes, like.dtype)
    update = public.reads is UpdateRelease and simulator.local is not None
    tensors = sent_tensors(simulator, x, targets, update=update, generator=generator)
    release = UpdateRelease(tensors) if update else GradientRelease(tensors)
    return Observation(release, Hints(batch_size=len(x), labels=records.y.cpu()))
