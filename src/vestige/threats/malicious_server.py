"""A server that chose the model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vestige.errors import BadInput
from vestige.interfaces import (
    Briefing,
    Public,
    Victim,
)
from vestige.networks.imprint import BareImprint, ImprintedModel
from vestige.records import Prior
from vestige.threats.honest_server import HonestServer


@dataclass(frozen=True)
class MaliciousServer(HonestServer):
    """A server that chose the model so that gradients give records away, and is not found out.

    Fowl et al., "Robbing the Fed" (2022): the architecture is the attacker's. What it is told
    otherwise is as for the honest one.
    """

    def public(self, victim: Victim, prior: Prior) -> Public:
        """Return what the server knows before any release; the model must be of its making."""
        if not isinstance(victim.simulator.model, ImprintedModel | BareImprint):
            raise BadInput(
                "A malicious server sends a model of its own making: put an imprint layer in "
                "front, ImprintedModel(model, space, bins), or say HonestServer()."
            )
        return super().public(victim, prior)

    def briefing(self, victim: Victim, batch_size: int) -> Briefing:
        """Say in words who sees what."""
        return replace(
            super().briefing(victim, batch_size),
            attacker="malicious server",
            who="The attacker is the training server. It sent a model of its own making, with a "
            "layer that copies records into the gradient.",
        )
