"""The record of the prior that the noisy gradients of DP-SGD speak for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.interfaces import (
    GradientSequenceRelease,
    Observation,
    Public,
    Reconstruction,
    Reconstructor,
)
from vestige.records import Records
from vestige.simulation.gradient_sequence import GradientSequenceSimulator, Trace

Score = Literal["likelihood_ratio", "dot_product"]


def dot_product_scores(products: Tensor) -> Tensor:
    """Σ_t ⟨x_t, u_i⟩ over the steps: products (…, T, n) → scores (…, n).

    Hayes, Mahloujifar and Balle 2023, the prior-aware attack as published.
    """
    return products.sum(-2)


def likelihood_ratio_scores(
    products: Tensor, squared_norms: Tensor, *, sampling_rate: float, noise_multiplier: float
) -> Tensor:
    """Σ_t ln(1 − q + q·exp((⟨x_t, u_i⟩ − ½‖u_i‖²)/σ²)): products (…, T, n) → scores (…, n).

    The logarithm of how much likelier the release is with record i than without any, if a step
    samples it with rate q: a step that cannot have held the record counts for next to nothing,
    where the dot product adds all of its noise.
    """
    exponents = (products - squared_norms / 2) / noise_multiplier**2 + math.log(sampling_rate)
    absent = -math.inf if sampling_rate == 1 else math.log1p(-sampling_rate)
    return torch.logaddexp(exponents, exponents.new_tensor(absent)).sum(-2)


def score_precision(releases: Trace) -> Tensor:
    """How far rounding to float32 may move Σ_t (⟨x_t, u_i⟩ − ½‖u_i‖²), for every record (n,)."""
    reach = (releases.remainders[:, None] * releases.squared_norms).sqrt() + releases.squared_norms
    return torch.finfo(torch.float32).eps * reach.sum(0)


@dataclass(frozen=True)
class PriorMatching:
    """Return the record of the prior whose gradients DP-SGD's noisy ones fit best.

    Hayes, Mahloujifar and Balle, "Bounding Training Data Reconstruction in DP-SGD" (2023), the
    prior-aware attack: the candidates are known beforehand, each as likely as the others, and the
    known records' gradients are subtracted. ``score="dot_product"`` is the published sum of inner
    products. Beyond the paper: the default is the likelihood ratio, which knows that
    most steps did not sample the record. It is the logarithm of the posterior up to a constant, so
    no score picks better among equally likely candidates; under subsampling it comes close to the
    bound where the published one stays far below.

    ``confidence`` is the posterior of the chosen record among the prior's. For the dot product it
    is the posterior if every step had held the record and all gradients were equally long.
    ``ties`` counts the records that have the best score up to rounding, itself included:
    two or more cannot be told apart.
    """

    score: Score = "likelihood_ratio"

    summary = "picks the record of the prior that DP-SGD's noisy gradients speak for"
    needs = "all noisy gradients, all other training records and when they were sampled"
    cites = "Hayes, Mahloujifar, Balle 2023, Bounding Training Data Reconstruction in DP-SGD"
    reads = (GradientSequenceRelease,)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def name(self) -> str:
        """The name readers see."""
        return "Prior matching" + (": dot product" if self.score == "dot_product" else "")

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Check that the training was private; there is nothing to train."""
        simulator, candidates = public.simulator, public.prior.records
        if not isinstance(simulator, GradientSequenceSimulator):
            raise BadInput(
                "Prior matching reads the gradients of DP-SGD beside known records: give a "
                "PrivateTraining."
            )
        if len(candidates) == 0:
            raise BadInput("The prior is empty: prior matching chooses among its records.")
        mechanism = simulator.private.mechanism

        def reconstruct(observation: Observation, generator: torch.Generator) -> Reconstruction:
            releases = simulator.trace(observation.release, candidates)
            scores = self.scores(releases, mechanism.sampling_rate, mechanism.noise_multiplier)
            best = int(scores.argmax())
            spread = mechanism.noise_multiplier**2 if self.score == "dot_product" else 1.0
            # The dot product is in units of ⟨x, u⟩, the likelihood ratio in those of ⟨x, u⟩/σ².
            doubt = score_precision(releases) * spread / mechanism.noise_multiplier**2
            tied = scores + doubt >= scores[best] - doubt[best]
            posterior = torch.softmax(scores / spread, 0)
            chosen = candidates[[best]]
            return Reconstruction(
                chosen.x.cpu(),
                chosen.y.cpu(),
                posterior[[best]].float(),
                info={"score": float(scores[best]), "candidates": len(candidates)},
                ties=int(tied.sum()),
            )

        return _Matcher(self, simulator, reconstruct)

    def scores(self, releases: Trace, sampling_rate: float, noise_multiplier: float) -> Tensor:
        """How much a sequence speaks for each record (n,), higher is likelier."""
        if self.score == "dot_product":
            return dot_product_scores(releases.products)
        return likelihood_ratio_scores(
            releases.products,
            releases.squared_norms,
            sampling_rate=sampling_rate,
            noise_multiplier=noise_multiplier,
        )


@dataclass(frozen=True)
class _Matcher:
    """Prior matching of one training, which also scores records that are not in the prior."""

    attack: PriorMatching
    simulator: GradientSequenceSimulator
    reconstruct: Callable[[Observation, torch.Generator], Reconstruction]

    def __call__(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """Pick a record of the prior."""
        return self.reconstruct(observation, generator)

    def log_likelihoods(self, observation: Observation, records: Records) -> Tensor | None:
        """The likelihood ratio of each record to none; a dot product is no likelihood."""
        if self.attack.score != "likelihood_ratio":
            return None
        mechanism = self.simulator.private.mechanism
        return self.attack.scores(
            self.simulator.trace(observation.release, records),
            mechanism.sampling_rate,
            mechanism.noise_multiplier,
        )
