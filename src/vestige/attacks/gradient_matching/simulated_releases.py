"""Releases of records that the attacker has, made as the client makes them, noise and all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vestige.errors import BadInput
from vestige.interfaces import Hints, Observation, Public
from vestige.simulation.client_releases import sent_tensors
from vestige.simulation.kinds import client_simulator
from vestige.streams import stream

if TYPE_CHECKING:
    from vestige.records import Records


def simulate_observation(
    public: Public, records: Records, *, generator: torch.Generator
) -> Observation:
    """What the attacker would see of a client that holds these records, labels told.

    The defence is the one that ``public.simulator`` knows: records clipped, private noise drawn,
    alterations as they are sent (not as a reader expects them), and the mean over clients.
    """
    simulator = client_simulator(public.simulator)
    tensors = sent_tensors(simulator, *simulator.batch(records), generator=generator)
    hints = Hints(batch_size=len(records), labels=records.y.cpu())
    return Observation(simulator.releases(tensors), hints)


def prior_batch(public: Public, batch_size: int) -> Records:
    """A batch of prior records whose release is simulated; always the same."""
    records = public.prior.records
    if len(records) < batch_size:
        raise BadInput(
            f"The prior holds {len(records):,} records, too few to simulate a batch of "
            f"{batch_size}: give a larger prior, or pass the attacks to run."
        )
    order = torch.randperm(len(records), generator=stream(0, "simulated batch"))
    return records[order[:batch_size]]
