"""Attacks that a study was not given: recommended, and said to be so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vestige import attacks as attack_room
from vestige.attacks.gradient_matching.simulated_releases import prior_batch, simulate_observation
from vestige.attacks.recommendation.recommendation import Recommendation
from vestige.interfaces import Attack, Observation, Run
from vestige.simulation.kinds import ClientSimulator
from vestige.streams import stream

if TYPE_CHECKING:
    from vestige.interfaces import Public
    from vestige.studies.audit.plan import Audit


def chosen_for_audit(audit: Audit) -> Recommendation:
    """The attacks that suit what the attacker of an audit knows and would see."""
    public = audit.threat.public(audit.victim, audit.prior)
    return attack_room.recommended(public, simulated_trial(audit, public))


def simulated_trial(audit: Audit, public: Public) -> Observation | None:
    """What the attacker would see of a batch of prior records; None for trained models."""
    if not isinstance(public.simulator, ClientSimulator):
        return None
    records = prior_batch(public, audit.batch_size)
    # A model that does not fit its records is refused here as it is when attacks are given.
    audit.victim.release(records, generator=stream(0, "simulated release"))
    generator = stream(0, "simulated release")
    release = simulate_observation(public, records, generator=generator).release
    return audit.threat.observe(Run(records, release))


def choice_settings(attacks: Sequence[Attack]) -> dict[str, str]:
    """What the settings of a report say of attacks that were recommended; nothing of others."""
    if not isinstance(attacks, Recommendation):
        return {}
    return {"Attacks": f"chosen by Vestige. {attacks}"}
