"""Threat models: who the attacker is and what it is told. The only door to the attacker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from vestige.errors import BadInput
from vestige.imprint import BareImprint, ImprintedModel
from vestige.observations import (
    Briefing,
    GradientRelease,
    GradientSequenceRelease,
    Hints,
    ModelRelease,
    Observation,
    Public,
    Release,
    Run,
    Victim,
)
from vestige.records import Prior
from vestige.simulation import LocalTraining, reinitialized
from vestige.streams import stream


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

    def public(self, victim: Victim, prior: Prior) -> Public:
        """Return what the server knows before any release."""
        if victim.releases in (ModelRelease, GradientSequenceRelease):
            raise BadInput(
                "A server that watches a client sees neither a trained model nor its training: say "
                "threat=InformedAdversary() to audit what a trainer releases, WeakAdversary() for "
                "its head."
            )
        simulator = victim.simulator
        if not self.normalization:
            simulator = replace(simulator, normalization=None)
        if not self.local_training and simulator.local is not None:
            simulator = replace(simulator, local=LocalTraining(steps=1, learning_rate=1.0))
        if not self.defense:
            simulator = replace(simulator, alterations=(), clients=1, clipped_noise=None)
        return Public(simulator, prior, reads=victim.releases)

    def observe(self, run: Run) -> Observation:
        """Return a copy of the release, without buffers unless they were told, and the hints."""
        buffers = run.release.buffers if self.batch_norm else {}
        release = replace(
            run.release, tensors=_copied(run.release.tensors), buffers=_copied(buffers)
        )
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
        nouns = "1 record" if batch_size == 1 else f"{batch_size} records"
        if federated:
            steps = simulator.local.steps if simulator.local else 1
            sees = f"One model update after {steps} local steps on {nouns}, as it was sent."
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
        if simulator.alterations or simulator.clipped_noise or simulator.clients > 1:
            facts.append((self.defense, "what clients do to gradients before they leave"))
        withheld = [fact for told, fact in facts if not told]
        return Briefing(
            attacker="training server",
            who="The attacker is the training server. It follows the protocol and keeps what it "
            "receives.",
            sees=sees,
            told=_listed([fact for told, fact in facts if told]),
            not_told=_listed(["the records", *withheld]),
        )


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


@dataclass(frozen=True)
class InformedAdversary:
    """Knows every training record but one, how the model was trained, and the trained model.

    Of DP-SGD it sees every noisy gradient and knows which of its records each step sampled: the
    adversary that the guarantee holds against, stronger than any reader of the final model.

    Balle, Cherubin and Hayes, "Reconstructing Training Data with Informed Adversaries" (2022),
    Section 2: the strongest reader of a released model, so what it cannot redraw nobody can who
    reads the model alone. ``initialization`` says whether it is told the exact weights that
    training began with; without them it only knows how they are drawn.
    """

    initialization: bool = True

    def public(self, victim: Victim, prior: Prior) -> Public:
        """Return what is known before any release; the known records are its companions."""
        simulator = victim.simulator
        trainer = victim.releases in (ModelRelease, GradientSequenceRelease)
        if not trainer or simulator.companions is None:
            raise BadInput(
                "An informed adversary reads a trained model or its training: give a victim that "
                "releases one, such as ReleasedNetwork, or another threat model."
            )
        if simulator.fit is not None:
            return Public(simulator, prior, reads=victim.releases)
        if simulator.private is not None and not self.initialization:
            raise BadInput(
                "Whoever sees the gradients of a training knows where it began: leave "
                "initialization at True."
            )
        if self.initialization and simulator.fresh_initialization:
            raise BadInput(
                "The victim draws new initial weights in every run, so nobody knows them before: "
                "say InformedAdversary(initialization=False)."
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
            tensors=_copied(run.release.tensors),
            buffers=_copied(run.release.buffers),
        )
        if isinstance(release, GradientSequenceRelease) and release.known_sampled is not None:
            release = replace(release, known_sampled=release.known_sampled.clone())
        return Observation(release, Hints(batch_size=len(run.secret)))

    def briefing(self, victim: Victim, batch_size: int) -> Briefing:
        """Say in words who sees what."""
        simulator = victim.simulator
        known = 0 if simulator.companions is None else len(simulator.companions)
        facts = [
            (True, f"the other {known:,} training records with their labels"),
            (True, "the model, its loss and how it is trained"),
        ]
        if simulator.normalization is not None:
            facts.append((True, "the normalisation"))
        if simulator.fit is None:
            facts.append((self.initialization, "the exact initial weights"))
        who = "The attacker knows all training records but one and reads the trained model."
        sees = "The parameters of one trained model, as it was published."
        if simulator.private is not None:
            facts.append((True, "which of those records each step sampled"))
            facts.append((False, "the noise and whether a step sampled that record"))
            who = "The attacker knows all training records but one and watches DP-SGD train."
            sees = f"The noisy gradients of {simulator.private.mechanism.steps:,} private steps."
        if simulator.clipped_noise is not None:
            facts.append((True, "the clipping norm and the size of the noise"))
            facts.append((False, "the noise"))
        withheld = [fact for told, fact in facts if not told]
        return Briefing(
            attacker="informed adversary",
            who=who,
            sees=sees,
            told=_listed([fact for told, fact in facts if told]),
            not_told=_listed(["the one record and its label", *withheld]),
        )


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
        if victim.releases is not ModelRelease or victim.simulator.head is None:
            raise BadInput(
                "A weak adversary reads a head that was trained on a frozen backbone: give a "
                "ReleasedHead, or another threat model."
            )
        return Public(victim.simulator, prior, reads=victim.releases)

    def observe(self, run: Run) -> Observation:
        """Return a copy of the head, with the labels of the training set, sorted."""
        release = replace(run.release, tensors=_copied(run.release.tensors), buffers={})
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
            told=_listed(facts),
            not_told=_listed(["the records", "seeds, initial weights and the order of training"]),
        )


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _listed(facts: list[str]) -> str:
    sentence = ", ".join(facts)
    return f"{sentence[0].upper()}{sentence[1:]}."
