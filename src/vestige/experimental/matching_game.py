"""The matching game: one of n known candidates was trained on, and an attacker says which.

Hayes, Mahloujifar and Balle, "Bounding Training Data Reconstruction in DP-SGD" (2023). Before the
release every candidate is as likely as the others, so a guess wins with probability 1/n, and no
attack wins more often than the bound at κ = 1/n. This is not an audit: there the attacker does not
know the pool that secrets come from. It shows how much of a bound is real.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.attacks.prior_matching import PriorMatching
from vestige.bounds.allowance import tightest
from vestige.errors import BadInput
from vestige.interfaces import Run
from vestige.mechanisms import DPSGD, Neighbouring
from vestige.records import Prior, Records
from vestige.simulation.gradient_sequence import Trace
from vestige.statistics.rates import lower_limit, upper_limit
from vestige.threats.informed_adversary import InformedAdversary
from vestige.victims.private_training import PrivateTraining

AT_ONCE = 4_000_000
"""Simulated numbers held in memory at the same time."""


@dataclass(frozen=True)
class MatchingResult:
    """How often the attacker named the right candidate, and how often any attacker may.

    ``limits`` are one-sided Clopper–Pearson limits, each wrong with probability ``doubt`` at most.
    """

    hits: int
    trials: int
    candidates: int
    limits: tuple[float, float]
    bound: float
    doubt: float

    @property
    def rate(self) -> float:
        """Share of trials that were won."""
        return self.hits / self.trials

    @property
    def share(self) -> float:
        """How much of the bound was reached."""
        return self.rate / self.bound

    @property
    def sound(self) -> bool:
        """Whether bound and attack can both be right: the lower limit is within the bound."""
        return self.limits[0] <= self.bound


def matching_game(
    victim: PrivateTraining,
    candidates: Records,
    trials: int,
    generator: torch.Generator,
    *,
    attack: PriorMatching | None = None,
    doubt: float = 0.025,
) -> MatchingResult:
    """Let a victim train on one of the candidates, again and again, and an attack say on which.

    The attack sees what an informed adversary sees and holds the candidates as its prior. A secret
    that it cannot tell from another candidate counts as missed.
    """
    _check(len(candidates), trials, doubt)
    prints = candidates.fingerprints()
    if len(set(prints)) < len(prints) or set(prints) & set(victim.known.fingerprints()):
        raise BadInput(
            "Some candidates are equal to each other or to known records: take them from "
            "Records.distinct, and known records from elsewhere."
        )
    threat = InformedAdversary()
    public = threat.public(victim, Prior(candidates))
    reconstruct = (attack or PriorMatching()).prepare(public, generator=generator)
    hits = 0
    for _ in range(trials):
        secret = candidates[[int(torch.randint(len(candidates), (), generator=generator))]]
        release = victim.release(secret, generator=generator)
        found = reconstruct(threat.observe(Run(secret, release)), generator)
        alone = found.ties == 1
        hits += alone and torch.equal(found.candidates[0], secret.x[0].cpu())
    return _result(hits, trials, len(candidates), victim.mechanism, doubt)


def worst_case_game(
    mechanism: DPSGD,
    candidates: int,
    trials: int,
    generator: torch.Generator,
    *,
    attack: PriorMatching | None = None,
    doubt: float = 0.025,
) -> MatchingResult:
    """Play the game where candidates are easiest to tell apart, without a model.

    Every candidate's gradient is clipped and orthogonal to those of all others, so step t shows
    ⟨x_t, u_i⟩ ~ N(0, σ²) for every candidate, plus one for the secret if the step sampled it.
    """
    _check(candidates, trials, doubt)
    if mechanism.relation is not Neighbouring.ADD_OR_REMOVE_ONE:
        raise BadInput(
            "The game compares a training with the record and one without it: account the "
            "mechanism under 'add or remove one'."
        )
    attack = attack or PriorMatching()
    hits, size = 0, max(1, AT_ONCE // (candidates * mechanism.steps))
    for start in range(0, trials, size):
        products, secrets = worst_case_products(
            mechanism, candidates, min(size, trials - start), generator
        )
        held = Trace(products, torch.ones(()), torch.zeros(()))
        scores = attack.scores(held, mechanism.sampling_rate, mechanism.noise_multiplier)
        hits += int(won(scores, secrets).sum())
    return _result(hits, trials, candidates, mechanism, doubt)


def won(scores: Tensor, secrets: Tensor) -> Tensor:
    """Where (trials,) the secret's score (trials, n) exceeds all others; a tie is lost."""
    places = secrets[:, None]
    others = scores.scatter(1, places, -torch.inf).amax(1)
    return scores.gather(1, places)[:, 0] > others


def worst_case_products(
    mechanism: DPSGD, candidates: int, trials: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """⟨x_t, u_i⟩ (trials, T, n) for orthonormal gradients u_i, and the secrets (trials,)."""
    shape = (trials, mechanism.steps, candidates)
    products = mechanism.noise_multiplier * torch.randn(shape, generator=generator)
    secrets = torch.randint(candidates, (trials,), generator=generator)
    sampled = torch.rand(shape[:2], generator=generator) < mechanism.sampling_rate
    places = secrets[:, None, None].expand(trials, mechanism.steps, 1)
    return products.scatter_add(2, places, sampled.to(products.dtype).unsqueeze(2)), secrets


def _check(candidates: int, trials: int, doubt: float) -> None:
    if candidates < 2 or trials < 1:
        raise BadInput("The matching game needs at least two candidates and one trial.")
    if not 0 < doubt < 1:
        raise BadInput("doubt lies strictly between 0 and 1.")


def _result(
    hits: int, trials: int, candidates: int, mechanism: DPSGD, doubt: float
) -> MatchingResult:
    limits = lower_limit(hits, trials, doubt), upper_limit(hits, trials, doubt)
    bound = tightest(mechanism, 1 / candidates).success[0]
    return MatchingResult(hits, trials, candidates, limits, bound, doubt)
