"""Threat models: who the attacker is and what it is told. The only door to the attacker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from vestige.observations import (
    Briefing,
    GradientRelease,
    Hints,
    Observation,
    Public,
    Run,
    Victim,
)
from vestige.records import Prior
from vestige.simulation import LocalTraining


@dataclass(frozen=True)
class HonestServer:
    """An honest-but-curious server: it follows the protocol and keeps what it receives.

    Every field says whether the server is told a thing; what it is not told is withheld here and
    nowhere else. The model is always known: the server sent it. ``labels`` are the labels in the
    batch. ``local_training`` are steps, batch size, learning rate and momentum of a federated
    client; without them the server reads an update as the negative of one gradient.
    ``normalization`` is what the client does to its inputs, ``batch_norm`` the buffers after the
    client's step.
    """

    batch_size: bool = True
    labels: bool = False
    local_training: bool = True
    normalization: bool = True
    batch_norm: bool = False

    def public(self, victim: Victim, prior: Prior) -> Public:
        """Return what the server knows before any release."""
        simulator = victim.simulator
        if not self.normalization:
            simulator = replace(simulator, normalization=None)
        if not self.local_training and simulator.local is not None:
            simulator = replace(simulator, local=LocalTraining(steps=1, learning_rate=1.0))
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
        withheld = [fact for told, fact in facts if not told]
        return Briefing(
            attacker="training server",
            who="The attacker is the training server. It follows the protocol and keeps what it "
            "receives.",
            sees=sees,
            told=_listed([fact for told, fact in facts if told]),
            not_told=_listed(["the records", *withheld]),
        )


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _listed(facts: list[str]) -> str:
    sentence = ", ".join(facts)
    return f"{sentence[0].upper()}{sentence[1:]}."
