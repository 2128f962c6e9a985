"""``recommended``: the attacks to run on a release, chosen from what its attacker knows."""

from __future__ import annotations

from collections.abc import Sequence

from vestige.attacks.gradient_matching.simulated_releases import prior_batch, simulate_observation
from vestige.attacks.recommendation.recommendation import Recommendation
from vestige.attacks.recommendation.rules import Choice, for_clients, for_trained_model
from vestige.attacks.recommendation.situation import Situation
from vestige.choices import check_object, check_whole
from vestige.interfaces import Observation, Public
from vestige.simulation.kinds import ClientSimulator
from vestige.simulation.refusals import refusing
from vestige.streams import stream


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
        with refusing():
            observation = simulate_observation(
                public, records, generator=stream(0, "simulated release")
            )
    return _recommendation(for_clients(Situation(public, observation)))


def _recommendation(choices: Sequence[Choice]) -> Recommendation:
    return Recommendation(
        tuple(choice.attack for choice in choices), tuple(choice.reason for choice in choices)
    )
