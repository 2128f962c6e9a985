"""Several local steps before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from vestige.choices import check_fields
from vestige.defenses.altering import BaseDefense
from vestige.defenses.defended_victims import rebuild
from vestige.errors import BadInput
from vestige.interfaces import UpdateRelease, Victim
from vestige.mechanisms import LocalAggregation as LocalAggregationMechanism
from vestige.mechanisms import Mechanism


@dataclass(frozen=True)
class LocalAggregation(BaseDefense):
    """The client makes ``steps`` local steps and sends their sum (McMahan et al. 2017).

    It fits victims that send updates. Attackers unroll the steps.
    """

    steps: int

    name = "Local steps"

    def __post_init__(self) -> None:
        check_fields(self, counts=("steps",))

    @property
    def mechanism(self) -> Mechanism:
        """Local steps, without any guarantee."""
        return LocalAggregationMechanism(self.steps)

    def __call__(self, victim: Victim) -> Victim:
        """Return the victim that makes this many steps."""
        if victim.releases is not UpdateRelease:
            raise BadInput(
                "Local steps need a client that sends updates, and this one sends a single "
                "gradient: describe it as a FederatedUpdate of one step."
            )

        def change(inner: Any) -> Victim:
            return replace(inner, local=replace(inner.local, steps=self.steps))

        return rebuild(victim, change)
