"""A gradient or an update as its attacker finds it, and what attacks make of it in trials."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from vestige import attacks
from vestige.attacks.exact_inversion.lifted import lift_feasible
from vestige.attacks.exact_inversion.search_budget import limited_search
from vestige.attacks.feature_inversion.feature_recovery import find_head, recover_features
from vestige.attacks.gradient_matching.matching import (
    Matching,
    batch_size_of,
    cosine_distance,
    hinted_batch_size,
    labels_of,
)
from vestige.attacks.gradient_matching.simulated_releases import simulate_observation
from vestige.distances import mean_squared_error
from vestige.errors import VestigeError
from vestige.interfaces import Attack, Observation, Public, Reconstruction
from vestige.networks.imprint import BareImprint, ImprintedModel
from vestige.records import ImageSpace, Prior
from vestige.simulation.kinds import ClientSimulator, client_simulator
from vestige.streams import stream

LIVE_MARGIN = 1.5
"""Live neurons of the first fully connected layer, in units of those that features need. Another
batch of the same size has fewer or more of them."""

REHEARSALS, REHEARSED_RECORDS, REHEARSED_ITERATIONS = 2, 6, 200
"""Simulated batches and records by which two searches are compared, at least, and iterations."""

REPRODUCED = 1e-4
"""1 − cosine between a release and that of its candidates, below which equations were consistent.
Rounding to bfloat16 leaves about 1e-6."""

SHORT = {"iterations": 1, "simulated_batches": 0, "sampling_draws": 0, "starts": 1}
"""Settings with which an attack shows quickly whether it runs."""


@dataclass(frozen=True)
class Situation:
    """A gradient or an update, and what its attacker knows."""

    public: Public
    observation: Observation

    @property
    def simulator(self) -> ClientSimulator:
        """The client's computation."""
        return client_simulator(self.public.simulator)

    @cached_property
    def size(self) -> int:
        """Records in the batch, told or assumed to be one."""
        return batch_size_of(self.observation)

    @cached_property
    def matching(self) -> Matching:
        """The release beside what the simulator can reproduce of it."""
        return Matching(self.public, self.observation.release, self.size)

    @property
    def exact(self) -> bool:
        """Whether every entry of the release is known up to rounding, in one local step."""
        matching = self.matching
        return self.simulator.steps == 1 and not matching.noise_share and matching.kept is None

    @cached_property
    def noise(self) -> float:
        """Share of known noise in the squared norm of the release."""
        return min(1.0, self.matching.noise_share * len(self.matching.observed))

    @cached_property
    def labels_unknown(self) -> bool:
        """Whether labels are neither told nor can be inferred from the release."""
        try:
            labels_of(self.public, self.observation)
        except VestigeError:
            return True
        return False

    @property
    def usable_prior(self) -> bool:
        """Whether a prior was collected that attacks without an imprint layer can use."""
        return self.public.prior.collected and not self.imprinted

    @cached_property
    def imprinted(self) -> bool:
        """Whether the model begins with an imprint layer."""
        return isinstance(self.simulator.model, ImprintedModel | BareImprint)

    def run(self, attack: Attack) -> Reconstruction:
        """What an attack makes of the release, on a model of its own."""
        own = dataclasses.replace(self.public, simulator=self.simulator.copied())
        reconstruct = attack.prepare(own, generator=stream(0, "prepare a trial"))
        return reconstruct(self.observation, stream(0, "trial")).checked(self.public.space)

    def solved(self, attack: Attack) -> bool:
        """Whether an attack that solves equations answers for all records of this release.

        Where it can certify them, it must. Without the batch size or the normalisation nothing is
        certified; then the answer must reproduce the release, which one to a noisy release does
        not.
        """
        try:
            found = self.run(attack)
        except VestigeError:
            return False
        told = hinted_batch_size(self.observation.hints)
        if found.diverged or len(found.candidates) < (told or 1):
            return False
        if told is None or not self.public.normalization_known or found.confidence is None:
            return self.reproduced(found)
        return bool((found.confidence > 0.5).all())

    def reproduced(self, found: Reconstruction) -> bool:
        """Whether candidates and their labels give the release up to rounding."""
        if found.labels is None:
            return False
        matching = self.matching
        labels = found.labels.to(matching.like.device)
        x = found.candidates.to(matching.like)
        try:
            simulated = matching.simulated(x, matching.targets(labels), functional=False).detach()
        except VestigeError:
            return False
        return float(cosine_distance(simulated[None], matching.observed)[0]) < REPRODUCED

    @cached_property
    def search_errors(self) -> tuple[float, float] | None:
        """Errors of feature inversion and of gradient matching on simulated releases of the prior.

        None where features are not exact or records are no pictures, and where the prior is too
        small.
        """
        public = self.public
        if self.imprinted or not isinstance(public.space, ImageSpace):
            return None
        if not public.prior.collected or not self.features_exact:
            return None
        compared = (attacks.FeatureInversion(), attacks.InvertingGradients())
        errors = rehearsed_errors(public, self.observation, compared)
        return None if errors is None else (errors[0], errors[1])

    @cached_property
    def features_exact(self) -> bool:
        """Whether the features of all records are certified, with neurons to spare.

        A head of one linear layer does not count: its features did not help.
        """
        if not self.exact:
            return False
        release, size = self.observation.release, hinted_batch_size(self.observation.hints)
        try:
            head = find_head(self.public, None)
            if size is None or len(head.names) < 2:
                return False
            dense = head.layers(self.public, release, size)
            live = int((dense.layers[0].weight_gradient.abs().amax(1) > 0).sum())
            if live < LIVE_MARGIN * lift_feasible(dense, size)[1]:
                return False
            generator = stream(0, "trial of features")
            with limited_search(attacks.FeatureInversion().search_budget):
                found = recover_features(
                    head, self.public, self.observation, noise=None, generator=generator
                )
        except VestigeError:
            return False
        return len(found.certified) == size and bool(found.certified.all())


def rehearsed_errors(
    public: Public, observation: Observation, attacks: Sequence[Attack]
) -> list[float] | None:
    """Root mean squared error of each attack on simulated releases, with few iterations.

    The records are the prior's, and the attacks do not have them. None where the prior is too
    small: at most half of it is taken.
    """
    size, records = batch_size_of(observation), public.prior.records
    used = size * max(REHEARSALS, -(-REHEARSED_RECORDS // size))
    if 2 * used > len(records):
        return None
    order = torch.randperm(len(records), generator=stream(0, "rehearsed records"))
    batches = order[:used].split(size)
    own = Prior(records[order[used:]])
    known = dataclasses.replace(public, prior=own, simulator=public.simulator.copied())
    errors = []
    for attack in attacks:
        short = _with(attack, {"iterations": REHEARSED_ITERATIONS})
        reconstruct = short.prepare(known, generator=stream(0, "prepare a rehearsal"))
        squares = []
        for number, batch in enumerate(batches):
            generator = stream(0, "rehearsal", number)
            seen = simulate_observation(known, records[batch], generator=generator)
            told = None if observation.hints.labels is None else seen.hints.labels
            hints = dataclasses.replace(observation.hints, labels=told)
            found = reconstruct(dataclasses.replace(seen, hints=hints), generator)
            true, candidates = records.x[batch].cpu().float(), found.candidates.cpu().float()
            squares.append(mean_squared_error(true, candidates).min(1).values.mean())
        errors.append(float(torch.stack(squares).mean().sqrt()))
    return errors


def shortened(attack: Attack) -> Attack:
    """The same attack with so little work that only its fit to model and release shows."""
    return _with(attack, SHORT)


def _with(attack: Attack, settings: Mapping[str, int]) -> Attack:
    """The attack with those of the settings that it has."""
    assert dataclasses.is_dataclass(attack)
    names = {field.name for field in dataclasses.fields(attack)}
    return dataclasses.replace(attack, **{n: v for n, v in settings.items() if n in names})
