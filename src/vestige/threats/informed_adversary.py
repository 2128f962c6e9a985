"""An adversary who knows all training records but one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.interfaces import (
    Briefing,
    GradientSequenceRelease,
    Hints,
    Observation,
    Public,
    Release,
    Run,
    Victim,
)
from vestige.records import Prior
from vestige.simulation.convex import ConvexSimulator
from vestige.simulation.gradient_sequence import GradientSequenceSimulator
from vestige.simulation.kinds import InformedSimulator
from vestige.simulation.network import NetworkSimulator, reinitialized
from vestige.streams import stream
from vestige.threats.told import copied, listed


@dataclass(frozen=True)
class InformedAdversary:
    """Knows every training record but one, how the model was trained, and the trained model.

    Of DP-SGD it sees every noisy gradient and knows which of its records each step sampled: the
    adversary that the guarantee holds against, stronger than any reader of the final model.

    Balle, Cherubin and Hayes, "Reconstructing Training Data with Informed Adversaries" (2022),
    Section 2: the strongest reader of a released model, so what it cannot redraw no reader can who
    reads the model alone. ``initialization`` says whether it is told the exact weights that
    training began with; without them it only knows how they are drawn.
    """

    initialization: bool = True

    def __post_init__(self) -> None:
        check_fields(self)

    def public(self, victim: Victim, prior: Prior) -> Public:
        """Return what is known before any release; the known records are its companions."""
        simulator = victim.simulator
        if not isinstance(simulator, InformedSimulator):
            raise BadInput(
                "An informed adversary reads a trained model or its training: give a victim that "
                "releases one, such as ReleasedNetwork, or another threat model."
            )
        if isinstance(simulator, GradientSequenceSimulator) and not self.initialization:
            raise BadInput(
                "initialization=False is not possible here: the gradients reveal the initial "
                "weights; leave initialization at True."
            )
        if isinstance(simulator, NetworkSimulator):
            if self.initialization and simulator.fresh_initialization:
                raise BadInput(
                    "The victim draws new initial weights in every run, so they are unknown "
                    "before: say InformedAdversary(initialization=False)."
                )
            if not self.initialization:
                # Weights of its own: those of the victim are what it is not told.
                other = reinitialized(simulator.model, stream(0, "unknown initialisation"))
                simulator = replace(simulator, model=other, fresh_initialization=True)
        return Public(simulator, prior, reads=victim.releases)

    def observe(self, run: Run) -> Observation:
        """Return a copy of the release: one record is unknown, its label too."""
        release: Release = replace(
            run.release,
            tensors=copied(run.release.tensors),
            buffers=copied(run.release.buffers),
        )
        if isinstance(release, GradientSequenceRelease) and release.known_sampled is not None:
            release = replace(release, known_sampled=release.known_sampled.clone())
        return Observation(release, Hints(batch_size=len(run.secret)))

    def briefing(self, victim: Victim, batch_size: int) -> Briefing:
        """Say in words who sees what."""
        simulator = victim.simulator
        assert isinstance(simulator, InformedSimulator)
        known = len(simulator.companions)
        facts = [
            (True, f"the other {known:,} training records with their labels"),
            (True, "the model, its loss and how it is trained"),
        ]
        if simulator.normalization is not None:
            facts.append((True, "the normalisation"))
        if not isinstance(simulator, ConvexSimulator):
            facts.append((self.initialization, "the exact initial weights"))
        who = "The attacker knows all training records but one and reads the trained model."
        sees = "The parameters of one trained model, as it was published."
        if isinstance(simulator, GradientSequenceSimulator):
            facts.append((True, "which of those records each step sampled"))
            facts.append((False, "the noise and whether a step sampled that record"))
            who = "The attacker knows all training records but one and watches DP-SGD train."
            sees = f"The noisy gradients of {simulator.private.mechanism.steps:,} private steps."
        if isinstance(simulator, NetworkSimulator) and simulator.clipped_noise is not None:
            facts.append((True, "the clipping norm and the size of the noise"))
            facts.append((False, "the noise"))
        withheld = [fact for told, fact in facts if not told]
        return Briefing(
            attacker="informed adversary",
            who=who,
            sees=sees,
            told=listed([fact for told, fact in facts if told]),
            not_told=listed(["the one record and its label", *withheld]),
        )
