"""The record of the prior that the noisy gradients of DP-SGD speak for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from vestige.errors import BadInput
from vestige.gradient_sequences import Trace, trace
from vestige.observations import (
    GradientSequenceRelease,
    Observation,
    Public,
    Reconstruction,
    Reconstructor,
)

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


@dataclass(frozen=True)
class PriorMatching:
    """Return the record of the prior whose gradients DP-SGD's noisy ones fit best.

    Hayes, Mahloujifar and Balle, "Bounding Training Data Reconstruction in DP-SGD" (2023), the
    prior-aware attack: the candidates are known beforehand, each as likely as the others, and the
    known records' gradients are subtracted. ``score="dot_product"`` is the published sum of inner
    products. Where we go on from the paper: the default is the likelihood ratio, which knows that
    most steps did not sample the record. It is the logarithm of the posterior up to a constant, so
    no score picks better among equally likely candidates; under subsampling it comes close to the
    bound where the published one stays far below.

    ``confidence`` is the posterior of the chosen record among the prior's. For the dot product it
    is the posterior if every step had held the record and all gradients were equally long.
    """

    score: Score = "likelihood_ratio"

    summary = "picks the record of the prior that DP-SGD's noisy gradients speak for"
    needs = "all noisy gradients, all other training records and when they were sampled"
    cites = "Hayes, Mahloujifar, Balle 2023, Bounding Training Data Reconstruction in DP-SGD"
    reads = (GradientSequenceRelease,)

    def __post_init__(self) -> None:
        if self.score not in get_args(Score):
            raise BadInput(f"A score is 'likelihood_ratio' or 'dot_product', not {self.score!r}.")

    @property
    def name(self) -> str:
        """The name readers see."""
        return "Prior matching" + (": dot product" if self.score == "dot_product" else "")

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Check that the training was private; there is nothing to train."""
        private, candidates = public.simulator.private, public.prior.records
        if private is None:
            raise BadInput(
                "Prior matching reads the gradients of DP-SGD beside known records: give a "
                "PrivateTraining."
            )
        if len(candidates) == 0:
            raise BadInput("The prior is empty: prior matching chooses among its records.")
        mechanism = private.mechanism

        def reconstruct(observation: Observation, generator: torch.Generator) -> Reconstruction:
            held = trace(public.simulator, observation.release, candidates)
            scores = self.scores(held, mechanism.sampling_rate, mechanism.noise_multiplier)
            best = int(scores.argmax())
            spread = mechanism.noise_multiplier**2 if self.score == "dot_product" else 1.0
            posterior = torch.softmax(scores / spread, 0)
            chosen = candidates[[best]]
            return Reconstruction(
                chosen.x.cpu(),
                chosen.y.cpu(),
                posterior[[best]].float(),
                info={"score": float(scores[best]), "candidates": len(candidates)},
            )

        return reconstruct

    def scores(self, held: Trace, sampling_rate: float, noise_multiplier: float) -> Tensor:
        """How much a sequence speaks for each record (n,), higher is likelier."""
        if self.score == "dot_product":
            return dot_product_scores(held.products)
        return likelihood_ratio_scores(
            held.products,
            held.squared_norms,
            sampling_rate=sampling_rate,
            noise_multiplier=noise_multiplier,
        )
