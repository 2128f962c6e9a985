"""Secure aggregation: the server sees a mean over clients."""

from __future__ import annotations

from dataclasses import dataclass

from vestige.choices import check_fields
from vestige.defenses.altering import BaseDefense
from vestige.defenses.defended_victims import AggregatedClients
from vestige.errors import BadInput
from vestige.interfaces import GradientRelease, UpdateRelease, Victim


@dataclass(frozen=True)
class ClientAggregation(BaseDefense):
    """The server sees the mean over ``clients`` clients and nothing of one alone.

    Bonawitz et al. 2017, "Practical Secure Aggregation". All their records are then one batch to
    an attacker, who looks for all of them. Without noise the sum carries no guarantee.
    """

    clients: int

    name = "Sum over clients"
    why = "a sum over clients without noise has no guarantee"

    def __post_init__(self) -> None:
        check_fields(self, counts=("clients",))

    def records(self, batch_size: int) -> int:
        """Those of all clients."""
        return batch_size * self.clients

    def __call__(self, victim: Victim) -> Victim:
        """Return the sum over this many such clients."""
        if isinstance(victim, AggregatedClients):
            raise BadInput("The clients are summed already: give the defence once.")
        if victim.releases not in (GradientRelease, UpdateRelease):
            raise BadInput("Sums over clients need clients that send gradients or updates.")
        return AggregatedClients(victim, self.clients)
