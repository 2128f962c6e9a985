"""``recommended``: the attacks to run on a release, chosen from what its attacker knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import torch

from vestige.attacks.gradient_matching.simulated_releases import simulate_observation
from vestige.attacks.recommendation.rules import Choice, for_clients, for_trained_model
from vestige.attacks.recommendation.situation import Situation
from vestige.choices import check_object, check_whole
from vestige.errors import BadInput
from vestige.interfaces import Attack, Observation, Public
from vestige.records import Records
from vestige.simulation.kinds import ClientSimulator
from vestige.streams import stream


@dataclass(frozen=True)
class Recommendation(Sequence[Attack]):
    """Attacks to run on a release, best first, and for each a sentence that says why.

    It is a sequence of its attacks: pass it wherever a list of attacks is expected.
    """

    attacks: tuple[Attack, ...]
    reasons: tuple[str, ...]

    @overload
    def __getitem__(self, index: int) -> Attack: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Attack, ...]: ...

    def __getitem__(self, index: int | slice) -> Attack | tuple[Attack, ...]:
        return self.attacks[index]

    def __len__(self) -> int:
        return len(self.attacks)

    def __str__(self) -> str:
        """Each attack by its name, with its reason."""
        return " ".join(f"{a.name}: {r}" for a, r in zip(self.attacks, self.reasons))


def recommended(
    public: Public, observation: Observation | None = None, *, batch_size: int = 1
) -> Recommendation:
    """Return the attacks to run on a release, best first, with a reason for each.

    The choice depends on what the attacker knows: the kind of release, the layers of the model,
    the batch size, whether labels are told, the noise and the defence that the simulator knows of,
    and whether a prior was collected. Attacks that solve equations are tried on the release and
    come first where they solve them; feature inversion is compared with gradient matching on
    simulated releases of prior records. Every attack on a gradient or an update runs once with one
    iteration, so none is recommended that does not fit this model and release. The same arguments
    give the same answer.

    Parameters
    ----------
    public
        What the attacker knows before any release.
    observation
        The release and the hints. None simulates a release of ``batch_size`` records of the prior,
        labels told; trained models need no observation.
    batch_size
        Records of the simulated release.
    """
    check_object("public of recommended", public, Public)
    check_whole("batch_size of recommended", batch_size, 1)
    if observation is not None:
        check_object("observation of recommended", observation, Observation)
        public.simulator.check(observation.release)
    if not isinstance(public.simulator, ClientSimulator):
        return _recommendation([for_trained_model(public)])
    if observation is None:
        records = prior_batch(public, batch_size)
        observation = simulate_observation(
            public, records, generator=stream(0, "simulated release")
        )
    return _recommendation(for_clients(Situation(public, observation)))


def prior_batch(public: Public, batch_size: int) -> Records:
    """A batch of prior records whose release is simulated; always the same."""
    records = public.prior.records
    if len(records) < batch_size:
        raise BadInput(
            f"The prior holds {len(records):,} records, too few to simulate a batch of "
            f"{batch_size}: give a larger prior, or pass the attacks to run."
        )
    order = torch.randperm(len(records), generator=stream(0, "simulated batch"))
    return records[order[:batch_size]]


def _recommendation(choices: Sequence[Choice]) -> Recommendation:
    return Recommendation(
        tuple(choice.attack for choice in choices), tuple(choice.reason for choice in choices)
    )
