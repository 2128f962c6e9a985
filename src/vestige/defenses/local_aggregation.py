"""Several local steps before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from vestige.bounds.mechanisms import LocalAggregation as LocalAggregationMechanism
from vestige.bounds.mechanisms import Mechanism
from vestige.defenses.defended_victims import rebuilt
from vestige.errors import BadInput
from vestige.observations import UpdateRelease, Victim


@dataclass(frozen=True)
class LocalAggregation:
    """The client makes ``steps`` local steps and sends their sum (McMahan et al. 2017).

    It fits victims that send updates. Attackers unroll the steps.
    """

    steps: int

    name = "Local steps"

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or self.steps < 1:
            raise BadInput(f"Local steps are a whole number of at least 1, not {self.steps!r}.")

    @property
    def strength(self) -> float:
        """The number of steps."""
        return float(self.steps)

    @property
    def setting(self) -> str:
        """The number of steps in words."""
        return f"{self.steps}"

    @property
    def mechanism(self) -> Mechanism:
        """Local steps, without any guarantee."""
        return LocalAggregationMechanism(self.steps)

    def records(self, batch_size: int) -> int:
        """As many as the client holds."""
        return batch_size

    def __call__(self, victim: Victim) -> Victim:
        """Return the victim that makes this many steps."""
        if victim.releases is not UpdateRelease:
            raise BadInput(
                "Local steps need a client that sends updates, and this one sends a single "
                "gradient: describe it as a FederatedUpdate of one step."
            )

        def change(inner: Any) -> Victim:
            return replace(inner, local=replace(inner.local, steps=self.steps))

        return rebuilt(victim, change)
