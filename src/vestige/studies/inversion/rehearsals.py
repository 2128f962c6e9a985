"""Rehearsals: releases of prior records, simulated and attacked like a captured one.

What an attack reaches on them says what its fit is worth: the records behind them are known. They
are made by the same simulator, so they stand for the captured release as far as that describes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vestige.attacks.gradient_matching.matching import labels_of
from vestige.attacks.gradient_matching.simulated_releases import simulate_observation
from vestige.distances import Distance, TokenDistance, mean_squared_error
from vestige.errors import BadInput, VestigeError
from vestige.interfaces import (
    GradientRelease,
    Observation,
    Public,
    Reconstruction,
    UpdateRelease,
)
from vestige.networks.token_model import predicts_tokens
from vestige.records import Prior, Records, Space, TextSpace
from vestige.reports.inversion import RehearsedRelease
from vestige.statistics.rates import NOTHING
from vestige.streams import stream
from vestige.studies.audit.evidence import assign, costs_between
from vestige.studies.inversion.fits import measure_fit

LARGEST_SHARE = 0.5
"""Share of the prior's records that rehearsals may take from what the attack learns from."""


def check_rehearsals(public: Public, observation: Observation, count: int) -> None:
    """Refuse what cannot be rehearsed before any work begins."""
    if count < 0:
        raise BadInput("The number of rehearsals is not below 0.")
    if count == 0:
        return
    if not isinstance(observation.release, GradientRelease | UpdateRelease):
        raise BadInput("Only gradients and updates are rehearsed: leave rehearsals out.")
    if not public.prior.collected:
        raise BadInput(
            "Rehearsals simulate releases of prior records, and none were given: give a prior, or "
            "leave rehearsals out."
        )
    needed = count * _size(observation)
    if needed > LARGEST_SHARE * len(public.prior.records):
        raise BadInput(
            f"{count} rehearsals take {needed:,} records, more than half of the prior's "
            f"{len(public.prior.records):,}: give a larger prior or ask for fewer rehearsals."
        )


@dataclass(frozen=True)
class Rehearsal:
    """A batch of prior records, what is seen of its simulated release, and the remaining prior."""

    batch: Records
    observation: Observation
    known: Public

    def measured(
        self, name: str, runs: Sequence[Reconstruction], *, generator: torch.Generator
    ) -> RehearsedRelease:
        """How well the runs of an attack fit the release, and how close they come."""
        return RehearsedRelease(
            fit=measure_fit(name, self.known, self.observation, runs, generator=generator),
            error=_error(runs[0], self.batch),
            guess_error=_guess_error(self.known.prior, self.batch),
        )


def draw_rehearsal(
    attack: str,
    public: Public,
    observation: Observation,
    number: int,
    count: int,
    *,
    seed: int,
    generator: torch.Generator,
) -> Rehearsal:
    """The release ``number`` of ``count`` that an attack rehearses; it learns from none of them.

    Batches have the labels of the captured release, told or inferred, where the prior has records
    of them, and the hints that the captured release came with.
    """
    batches, rest = _parted(
        public.prior,
        _labels(public, observation),
        count,
        _size(observation),
        stream(seed, "rehearsals", attack),
    )
    batch = batches[number]
    seen = simulate_observation(public, batch, generator=generator)
    tensors = {n: t for n, t in seen.release.tensors.items() if n in observation.release.tensors}
    told = batch.y if observation.hints.labels is not None else None
    seen = Observation(
        replace(seen.release, tensors=tensors), replace(observation.hints, labels=told)
    )
    return Rehearsal(batch, seen, replace(public, prior=rest))


def _labels(public: Public, observation: Observation) -> Tensor | None:
    if predicts_tokens(public.simulator.model):
        return None
    try:
        return labels_of(public, observation)[0]
    except VestigeError:  # a release that does not tell its labels is rehearsed with any
        return None


def _size(observation: Observation) -> int:
    labels = observation.hints.labels
    return len(labels) if labels is not None else observation.hints.batch_size or 1


def _parted(
    prior: Prior, labels: Tensor | None, count: int, size: int, generator: torch.Generator
) -> tuple[list[Records], Prior]:
    """Batches of records, each used once, and a prior without them."""
    free = torch.ones(len(prior.records), dtype=torch.bool)
    wanted = [None] * size if labels is None or len(labels) != size else labels.tolist()
    batches = []
    for _ in range(count):
        rows = []
        for label in wanted:
            members = prior.members(label)
            members = members[free[members]]
            members = members if len(members) else torch.nonzero(free).flatten()
            row = int(members[int(torch.randint(len(members), (), generator=generator))])
            free[row] = False
            rows.append(row)
        batches.append(prior.records[rows])
    return batches, Prior(prior.records[free])


def _error(found: Reconstruction, batch: Records) -> float | None:
    """Error of the assigned candidates, as many as there are records at most.

    Root mean squared error; the share of wrong tokens where records are texts.
    """
    candidates = found.candidates
    if len(candidates) > len(batch):
        scores = torch.zeros(len(candidates)) if found.confidence is None else found.confidence
        kept = scores.argsort(descending=True, stable=True)[: len(batch)]
        candidates = candidates[kept.to(candidates.device)]
    if len(candidates) < len(batch):
        return None
    costs = costs_between(_distance(batch.space), candidates, batch.x)
    chosen = assign(costs)
    total = [float(costs[row, place]) for place, row in enumerate(chosen)]
    return None if max(total) >= NOTHING else _rooted(sum(total) / len(total), batch.space)


def _guess_error(prior: Prior, batch: Records) -> float:
    """The same error of the prior's class means, of texts of its most common tokens."""
    means = torch.stack([prior.mean(label) for label in batch.y.tolist()])
    costs = costs_between(_distance(batch.space), means, batch.x)
    return _rooted(float(costs.diagonal().mean()), batch.space)


def _distance(space: Space) -> Distance:
    return TokenDistance(space.padding) if isinstance(space, TextSpace) else mean_squared_error


def _rooted(error: float, space: Space) -> float:
    return error if isinstance(space, TextSpace) else math.sqrt(error)
