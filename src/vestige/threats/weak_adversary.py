"""A reader of a published head."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vestige.errors import BadInput
from vestige.interfaces import (
    Briefing,
    Hints,
    Observation,
    Public,
    Run,
    Victim,
)
from vestige.records import Prior
from vestige.simulation.head import HeadSimulator
from vestige.threats.told import copied, listed


@dataclass(frozen=True)
class WeakAdversary:
    """Reads a published head; of the training set it knows how it was made up, and no record.

    Maciazek and Allison, "Vulnerability of Transfer-Learned Neural Networks to Data Reconstruction
    Attacks in Small-Data Regime" (2025), assumptions A.1 to A.3: the backbone, the form of the
    head, the training algorithm, the size of the training set and of its classes, and records of
    the same kind. It knows no seed, no gradient, no initial weights and no order of batches.
    """

    def public(self, victim: Victim, prior: Prior) -> Public:
        """Return what is known before any release."""
        if not isinstance(victim.simulator, HeadSimulator):
            raise BadInput(
                "A weak adversary reads a head that was trained on a frozen backbone: give a "
                "ReleasedHead, or another threat model."
            )
        return Public(victim.simulator, prior, reads=victim.releases)

    def observe(self, run: Run) -> Observation:
        """Return a copy of the head, with the labels of the training set, sorted."""
        release = replace(run.release, tensors=copied(run.release.tensors), buffers={})
        labels = run.secret.y.clone().sort().values
        return Observation(release, Hints(batch_size=len(run.secret), labels=labels))

    def briefing(self, victim: Victim, batch_size: int) -> Briefing:
        """Say in words who sees what."""
        facts = [
            "the backbone and the form of the head",
            "how the head is trained",
            f"the size of the training set ({batch_size}) and of its classes",
            "records of the same kind",
        ]
        if victim.simulator.normalization is not None:
            facts.append("the normalisation")
        return Briefing(
            attacker="weak adversary",
            who="The attacker reads the published model and knows none of its training records.",
            sees=f"The head of one model, trained on {batch_size} records, as it was published.",
            told=listed(facts),
            not_told=listed(["the records", "seeds, initial weights and the order of training"]),
        )
