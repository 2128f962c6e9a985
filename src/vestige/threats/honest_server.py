"""A server that follows the protocol and keeps what it receives."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.interfaces import (
    Briefing,
    GradientRelease,
    Hints,
    Observation,
    Public,
    Run,
    Victim,
)
from vestige.records import Prior
from vestige.simulation.kinds import ClientSimulator
from vestige.simulation.local_training import LocalTraining
from vestige.simulation.update import UpdateSimulator
from vestige.threats.told import copied, listed


@dataclass(frozen=True)
class HonestServer:
    """An honest-but-curious server: it follows the protocol and keeps what it receives.

    Every field says whether the server is told a thing; what it is not told is withheld here and
    nowhere else. The model is always known: the server sent it. ``labels`` are the labels in the
    batch. ``local_training`` are steps, batch size, learning rate and momentum of a federated
    client; without them the server reads an update as the negative of one gradient.
    ``normalization`` is what the client does to its inputs, ``batch_norm`` the buffers after the
    client's step. ``defense`` is what the client does to its gradient before it leaves: a server
    that is not told attacks as if nothing were done (a static attacker), which underestimates what
    a real one can do.
    """

    batch_size: bool = True
    labels: bool = False
    local_training: bool = True
    normalization: bool = True
    batch_norm: bool = False
    defense: bool = True

    def __post_init__(self) -> None:
        check_fields(self)

    def public(self, victim: Victim, prior: Prior) -> Public:
        """Return what the server knows before any release."""
        simulator = victim.simulator
        if not isinstance(simulator, ClientSimulator):
            raise BadInput(
                "A server that watches a client sees neither a trained model nor its training: say "
                "threat=InformedAdversary() to audit what a trainer releases, WeakAdversary() for "
                "its head."
            )
        if not self.normalization:
            simulator = replace(simulator, normalization=None)
        if not self.local_training and isinstance(simulator, UpdateSimulator):
            simulator = replace(simulator, local=LocalTraining(steps=1, learning_rate=1.0))
        if not self.defense:
            simulator = replace(simulator, alterations=(), clients=1, clipped_noise=None)
        return Public(
            simulator,
            prior,
            reads=victim.releases,
            normalization_known=self.normalization,
        )

    def observe(self, run: Run) -> Observation:
        """Return a copy of the release, without buffers unless they were told, and the hints."""
        buffers = run.release.buffers if self.batch_norm else {}
        release = replace(run.release, tensors=copied(run.release.tensors), buffers=copied(buffers))
        return Observation(
            release,
            Hints(
                batch_size=len(run.secret) if self.batch_size else None,
                labels=run.secret.y.clone() if self.labels else None,
            ),
        )

    def briefing(self, victim: Victim, batch_size: int) -> Briefing:
        """Say in words who sees what."""
        simulator, federated = victim.simulator, victim.releases is not GradientRelease
        assert isinstance(simulator, ClientSimulator)
        nouns = "1 record" if batch_size == 1 else f"{batch_size} records"
        if federated:
            sees = (
                f"One model update after {simulator.steps} local steps on {nouns}, as it was sent."
            )
        else:
            sees = f"One gradient of {nouns}, as it was sent."
        facts = [
            (True, "the model, its loss and its mode"),
            (self.batch_size, f"the batch size ({batch_size})"),
            (self.labels, "the labels of the batch in their order"),
        ]
        if federated:
            facts.append((self.local_training, "steps, batch and learning rate of local training"))
        if simulator.normalization is not None:
            facts.append((self.normalization, "the normalisation"))
        if simulator.mode == "train" and any(True for _ in simulator.model.buffers()):
            facts.append((self.batch_norm, "the batch-norm statistics after the step"))
        if simulator.defended:
            facts.append((self.defense, "what clients do to gradients before they leave"))
        withheld = [fact for told, fact in facts if not told]
        return Briefing(
            attacker="training server",
            who="The attacker is the training server. It follows the protocol and keeps what it "
            "receives.",
            sees=sees,
            told=listed([fact for told, fact in facts if told]),
            not_told=listed(["the records", *withheld]),
        )
