"""Confidence that is a rate: what share of rehearsals as sure as this one found their record."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from vestige import progress
from vestige.attacks.around_attack import AroundAttack
from vestige.attacks.gradient_matching.matching import batch_size_of
from vestige.attacks.gradient_matching.simulated_releases import simulate_observation
from vestige.choices import check_fields
from vestige.distances import mean_squared_error
from vestige.errors import BadInput
from vestige.interfaces import (
    Hints,
    Observation,
    Public,
    Reconstruction,
    Reconstructor,
)
from vestige.records import Prior, Records

LARGEST_SHARE = 0.5
"""Share of the prior's records that rehearsals may take from what the attack learns from."""
FEWEST = 5
"""Rehearsals below which a rate would say nothing."""
NEIGHBOURS = 20
"""Rehearsed releases next below a confidence that its limit rests on, with those that tie."""

Calibration = Callable[[Tensor], Tensor]
"""An attack's own confidence (k,) → the share of rehearsed candidates like it that hit (k,)."""


@dataclass(frozen=True)
class Rehearsed:
    """What rehearsals of one kind gave: rates by confidence, and what they rest on.

    ``scores`` and ``hits`` are those of the candidates of each rehearsed release.
    """

    rates: Calibration
    words: str
    scores: Sequence[Tensor]
    hits: Sequence[Tensor]
    decoys: int

    def behind(self, said: Tensor) -> Tensor:
        """Hits, rehearsed candidates and decoys (k, 3) that limit the rate of a confidence (k,).

        Of every release the candidate counts that is next below in confidence, and of these the
        ``NEIGHBOURS`` nearest and ties. They are chosen by confidence, never by outcome, and come
        from separate releases. If rates do not fall with confidence, their hits are therefore
        stochastically at most binomial at the rate of the one above them, and a one-sided
        Clopper–Pearson lower limit of them holds for it. A block of an isotonic fit is chosen by
        its hits, and its limit would not.
        """
        return torch.stack([self._below(float(value)) for value in said.nan_to_num(nan=-math.inf)])

    def _below(self, said: float) -> Tensor:
        nearest = []
        for scores, hits in zip(self.scores, self.hits, strict=True):
            known = scores.nan_to_num(nan=-math.inf)
            below = (known <= said).nonzero().flatten()
            if len(below):
                place = int(below[known[below].argmax()])
                nearest.append((float(known[place]), bool(hits[place])))
        nearest.sort(key=lambda one: -one[0])
        last = nearest[min(NEIGHBOURS, len(nearest)) - 1][0] if nearest else said
        counted = [hit for score, hit in nearest if score >= last]
        return torch.tensor([sum(counted), len(counted), self.decoys])


@dataclass(frozen=True)
class RehearsedConfidence(AroundAttack):
    """Another attack on gradients or updates, with a confidence that means what it says.

    The attack is rehearsed on simulated releases of prior records, made by the attacker's own
    simulator, defence included, and its confidence is replaced by the rate at which candidates of
    that confidence hit: 0.8 means that 8 of 10 hit. A candidate hits if its record is closer to it
    than ``decoys`` prior records of the same label that are not in its batch; where the prior has
    fewer of a label, ``info`` says how many at least. The rates are an isotonic regression on what
    the attack said (Zadrozny and Elkan 2002, "Transforming classifier scores into accurate
    multiclass probability estimates", Section 3), each block drawn towards the overall rate as by
    one more release. ``rehearsed`` holds what a lower limit of a rate may rest on
    (:meth:`Rehearsed.behind`).

    The first observation of each kind costs ``rehearsals`` more runs of the attack. A kind is a
    batch size, what is told, and, where labels are told, how many records share one: batches of
    one label are harder. A rate holds for releases like the rehearsed ones: distinct records like
    the prior's, made as the simulator makes them.
    """

    rehearsals: int = 40
    decoys: int = 49

    def __post_init__(self) -> None:
        check_fields(self, counts=("rehearsals", "decoys"))

    @property
    def name(self) -> str:
        """The attack's."""
        return self.attack.name

    @property
    def summary(self) -> str:
        """The attack's, and how its confidence comes about."""
        return f"{self.attack.summary}; confidence from {self.rehearsals} rehearsals"

    @property
    def confidence_is_rate(self) -> bool:
        """It is: of rehearsed candidates as sure as this one."""
        return True

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Prepare the attack; rehearsals follow with the first observation of each kind."""
        if not public.prior.collected:
            raise BadInput(
                "Rehearsals simulate releases of prior records, and none were given: give a prior, "
                "or run the attack without RehearsedConfidence."
            )
        seed = int(torch.randint(2**62, (), generator=generator))
        reconstruct = self.attack.prepare(public, generator=generator)
        calibrations: dict[Kind, Rehearsed] = {}

        def calibrated(observation: Observation, generator: torch.Generator) -> Reconstruction:
            found = reconstruct(observation, generator)
            kind = Kind.of(observation)
            if kind not in calibrations:
                own = torch.Generator().manual_seed(seed)
                calibrations[kind] = self._rehearse(public, kind, generator=own)
            rehearsed, said = calibrations[kind], _said(found)
            return replace(
                found,
                confidence=rehearsed.rates(said),
                rehearsed=rehearsed.behind(said) if len(said) else None,
                info={**found.info, "confidence": rehearsed.words},
            )

        return calibrated

    def _rehearse(self, public: Public, kind: Kind, *, generator: torch.Generator) -> Rehearsed:
        """What confidences are worth on simulated releases of a kind, and in words."""
        size, records = kind.size, _distinct(public.prior.records)
        count = min(self.rehearsals, int(LARGEST_SHARE * len(records)) // size)
        if count < FEWEST:
            raise BadInput(
                f"{FEWEST} rehearsals take {FEWEST * size:,} records, more than half of the "
                f"prior's {len(records):,} different ones: give a larger prior, or run the attack "
                "without RehearsedConfidence."
            )
        batches = _batches(records.y.cpu(), kind, count, generator)
        known = replace(public, prior=Prior(_without(records, torch.cat(batches))))
        reconstruct = self.attack.prepare(known, generator=generator)
        said, hits, fewest = [], [], self.decoys
        for number, places in enumerate(batches):
            batch, others = records[places], _without(records, places)
            seen = simulate_observation(known, batch, generator=generator)
            labels = None if kind.shared is None else seen.hints.labels
            hints = Hints(size if kind.size_told else None, labels)
            named = progress.part(f"rehearsal {number + 1} of {len(batches)}")
            with progress.not_recording(), named:
                found = reconstruct(replace(seen, hints=hints), generator)
            said.append(_said(found))
            hit, compared = self._hits(found.candidates, batch, others)
            hits.append(hit)
            fewest = min(fewest, compared)
        scores, outcomes = torch.cat(said), torch.cat(hits)
        fewer = "" if fewest == self.decoys else "at least "
        words = (
            f"rehearsed: {int(outcomes.sum())} of {len(outcomes)} candidates hit, each compared "
            f"with {fewer}{fewest} decoys"
        )
        rates = isotonic_rates(scores, outcomes, together=size)
        return Rehearsed(rates, words, said, hits, fewest)

    def _hits(self, candidates: Tensor, batch: Records, others: Records) -> tuple[Tensor, int]:
        """Whether candidates are closer to their record than any decoy (k,); the fewest decoys."""
        costs = mean_squared_error(candidates, batch.x.to(candidates))
        hits, fewest = torch.zeros(len(candidates), dtype=torch.bool), self.decoys
        usable = costs.nan_to_num(nan=1e30, posinf=1e30).cpu().numpy()
        for candidate, record in zip(*linear_sum_assignment(usable)):
            alike = others.x[others.y == batch.y[record]]
            decoys = (alike if len(alike) else others.x)[: self.decoys].to(candidates)
            nearest = mean_squared_error(candidates[candidate][None], decoys).min()
            hits[candidate] = bool(costs[candidate, record] < nearest)
            fewest = min(fewest, len(decoys))
        return hits, fewest


@dataclass(frozen=True)
class Kind:
    """What observations that are rehearsed together have in common.

    ``shared`` counts the records of each label in the batch, largest first; None where labels are
    not told.
    """

    size: int
    size_told: bool
    shared: tuple[int, ...] | None

    @classmethod
    def of(cls, observation: Observation) -> Kind:
        """The kind of an observation."""
        hints, shared = observation.hints, None
        if hints.labels is not None:
            counts = torch.unique(hints.labels, return_counts=True)[1]
            shared = tuple(sorted(counts.tolist(), reverse=True))
        return cls(batch_size_of(observation), hints.batch_size is not None, shared)


def _distinct(records: Records) -> Records:
    """Every record once: a copy as a decoy would be as close as the record itself."""
    first: dict[str, int] = {}
    for place, key in enumerate(records.fingerprints()):
        first.setdefault(key, place)
    return records[torch.tensor(list(first.values()))]


def _without(records: Records, places: Tensor) -> Records:
    """All other records."""
    left = torch.ones(len(records), dtype=torch.bool)
    left[places] = False
    return records[left.nonzero().flatten()]


def _batches(labels: Tensor, kind: Kind, count: int, generator: torch.Generator) -> list[Tensor]:
    """Places of the records of at most ``count`` batches, none twice.

    Labels are shared as in the kind if the prior has enough records of one label for ``FEWEST``
    batches, and drawn at random otherwise.
    """
    order = torch.randperm(len(labels), generator=generator)
    free = {label: order[labels[order] == label].tolist() for label in labels.unique().tolist()}
    batches: list[Tensor] = []
    while kind.shared is not None and len(batches) < count:
        # Labels with most records left come first, so that many batches can be drawn.
        fullest = sorted(free, key=lambda label: -len(free[label]))
        groups = [free[label][:group] for label, group in zip(fullest, kind.shared)]
        if sum(map(len, groups)) < kind.size:
            break
        for label, group in zip(fullest, kind.shared):
            del free[label][:group]
        batches.append(torch.tensor([place for group in groups for place in group]))
    return batches if len(batches) >= FEWEST else list(order[: count * kind.size].split(kind.size))


def isotonic_rates(scores: Tensor, hits: Tensor, *, together: int = 1) -> Calibration:
    """The rate of hits as a function of the score that never falls.

    Blocks of equal rate (Barlow et al. 1972, pool adjacent violators) of n observations and rate p
    become (n·p + m·p̄)/(n + m), p̄ the overall rate after one more release of which half hits, so
    that few observations are never sure. The m observations ``together`` come from one release and
    share its luck.
    """
    from sklearn.isotonic import IsotonicRegression

    known = scores.isfinite()
    if not bool(known.any()):
        rate = _overall(hits, together)
        return lambda said: torch.full_like(said, rate)
    x, y = scores[known].double().numpy(), hits[known].double().numpy()
    fit = IsotonicRegression(out_of_bounds="clip").fit(x, y)
    rates = torch.as_tensor(fit.predict(x))
    blocks, block, counts = torch.unique(rates, return_inverse=True, return_counts=True)
    overall = _overall(hits[known], together)
    shrunk = ((blocks * counts + together * overall) / (counts + together))[block]
    final = IsotonicRegression(out_of_bounds="clip").fit(x, shrunk.numpy())
    lowest = float(shrunk.min())

    def calibration(said: Tensor) -> Tensor:
        finite = said.isfinite()
        values = torch.full(said.shape, lowest, dtype=torch.float64)
        if bool(finite.any()):
            values[finite] = torch.as_tensor(final.predict(said[finite].double().cpu().numpy()))
        return values.to(torch.float32)

    return calibration


def _overall(hits: Tensor, together: int) -> float:
    """The rate of hits after one more release of which half hits."""
    return (float(hits.double().sum()) + together / 2) / (len(hits) + together)


def _said(found: Reconstruction) -> Tensor:
    """The attack's own confidence (k,), on the CPU; without one, its objective's negative."""
    if found.confidence is not None:
        return found.confidence.detach().cpu().float()
    value = 0.0 if found.objective is None else -found.objective
    return torch.full((len(found.candidates),), value)
