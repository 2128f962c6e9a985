"""Features of more records than a head has mixtures: the classes' own covariances tell them apart.

A binary head is one or two mixtures of ten feature vectors. Dimension by dimension that determines
next to nothing of each; but features of a class vary along few directions, which are not those of
another class, so the mixture as a whole says which part of it is whose. This is the posterior of a
Gaussian prior with the full covariance of every class, given coefficients that a network reads off
the head (it learned them from simulated heads) and its errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vestige.attacks.head_inversion.coefficients import fit_network, reading_network
from vestige.attacks.head_inversion.mixtures import logit_weights, unit_mixtures

if TYPE_CHECKING:
    from vestige.attacks.head_inversion.groups import Groups
    from vestige.attacks.head_inversion.knowledge import PriorKnowledge
    from vestige.attacks.head_inversion.reading import Heads, SimulatedHeads

DIMENSIONS = 256
"""Directions that features are estimated in; the others keep their means."""

READ_DIRECTIONS = 62
"""Principal directions within classes that the network sees a mixture on."""

EXAMPLES, MOST_EPOCHS = 600_000, 40
"""Simulated heads that the network sees, and how often each of them at most."""

CHUNK = 16
"""Heads estimated at a time; bounds the memory, s·(r·d)² numbers."""

BIAS_VARIANCE = 1e-8
"""Biases are the sums of coefficients, in units of the mixture's length, up to rounding."""


@dataclass(frozen=True)
class ClassFeatures:
    """Law of the features of each group: ``mean`` (g, m) and ``covariance`` (g, m, m) in a basis.

    ``basis`` (m, d) are orthonormal directions, the principal ones first; ``center`` (g, d) are the
    means themselves.
    """

    basis: Tensor
    center: Tensor
    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, groups: Groups, features: Tensor, labels: Tensor, center: Tensor) -> ClassFeatures:
        """From features (n, d) of the prior's records, in double precision."""
        features, center = features.double(), center.double()
        own = [features if c is None else features[labels == c] for c in groups.classes]
        whole = torch.stack([torch.cov(rows.T) for rows in own])
        spread = center - center.mean(0)
        total = whole.mean(0) + spread.T @ spread / len(spread)
        count = min(DIMENSIONS, features.shape[1])
        basis = torch.linalg.eigh(total)[1].flip(1)[:, :count].T
        counts = torch.tensor(groups.counts, dtype=torch.float64)[:, None, None]
        return cls(basis, center, center @ basis.T, basis @ (whole / counts) @ basis.T)


def mixture_posterior(
    mixtures: Tensor,
    bias: Tensor,
    coefficients: Tensor,
    errors: Tensor,
    noise: Tensor,
    law: ClassFeatures,
) -> Tensor:
    """Posterior mean (s, g, m) of features x given mixtures (s, r, m) = Σ a x + noise (s, r).

    ``coefficients`` (s, r, g) are a up to errors of covariance ``errors`` (r·g, r·g), ``bias``
    (s, r) their sums. With x = μ + ξ and a = â + δ this is Y − âμ = âξ + δμ + δξ + noise. The terms
    are uncorrelated, so the best linear estimate of ξ needs their covariances alone:
    Σ (â_p â_q + E δ_p δ_q) C + Σ μ E[δδᵀ] μᵀ + noise.
    """
    heads, count, groups = coefficients.shape
    width = law.mean.shape[1]
    spread = errors.view(count, groups, count, groups)
    # One more column for the bias: a feature that is always 1.
    mean = nn.functional.pad(law.mean, (0, 1), value=1.0)
    shift = torch.einsum("nd,pnqm,me->pdqe", mean, spread, mean)
    own = spread.diagonal(dim1=1, dim2=3)
    moments = coefficients[:, :, None] * coefficients[:, None] + own
    scatter = moments @ law.covariance.flatten(1)
    scatter = scatter.view(heads, count, count, width, width).transpose(2, 3)
    whole = shift.expand(heads, -1, -1, -1, -1).clone()
    whole[:, :, :width, :, :width] += scatter
    exact = noise.new_full((heads, count, 1), BIAS_VARIANCE)
    floor = torch.cat([noise[..., None].expand(-1, -1, width), exact], 2)
    whole = whole.reshape(heads, count * (width + 1), -1)
    whole.diagonal(dim1=1, dim2=2).add_(floor.flatten(1))
    away = torch.cat([mixtures, bias[..., None]], 2) - coefficients @ mean
    solved = torch.cholesky_solve(away.flatten(1)[..., None], torch.linalg.cholesky(whole))
    solved = solved.view(heads, count, width + 1)[..., :width]
    pulled = coefficients.mT @ solved
    return law.mean + torch.einsum("sgd,gde->sge", pulled, law.covariance)


@dataclass(frozen=True)
class MixtureEstimator:
    """Posterior of the features given the mixtures of a head with one logit; see the module.

    Mixtures and coefficients are in units of the mixture's length, which differs from head to head.
    ``errors`` is the covariance of the network's errors, ``noise`` the variance of a mixture around
    its records' features, as simulated heads have them.
    """

    network: nn.Module
    means: tuple[Tensor, Tensor]
    deviations: tuple[Tensor, Tensor]
    directions: Tensor
    law: ClassFeatures
    errors: Tensor
    noise: float
    each: int
    rectified: bool

    @classmethod
    def learned(
        cls,
        knowledge: PriorKnowledge,
        simulated: SimulatedHeads,
        each: int = 1,
        *,
        generator: torch.Generator,
    ) -> MixtureEstimator:
        """Learn the coefficients of simulated heads, a tenth of which measure the errors."""
        statistics, groups, features = knowledge.statistics, knowledge.groups, knowledge.features
        assert simulated.coefficients is not None
        law = ClassFeatures.of(groups, features, knowledge.labels, statistics.mean)
        count = min(READ_DIRECTIONS, len(law.basis))
        inner = torch.linalg.eigh(law.covariance.mean(0))[1].flip(1)[:, :count].T @ law.basis
        directions = torch.cat([inner, law.center]).to(features)
        heads = simulated.heads
        mixtures = unit_mixtures(heads, each)
        lengths = _lengths(mixtures @ heads.weight)
        goals = mixtures @ groups.sums(simulated.coefficients).mT / lengths
        rows = _readings(heads, mixtures, directions)
        means, deviations = (rows.mean(0), goals.mean(0)), (_spread(rows), _spread(goals))
        inputs = ((rows - means[0]) / deviations[0]).clamp(-10, 10)
        wanted = ((goals - means[1]) / deviations[1]).flatten(1)
        network = reading_network(inputs.shape[1], wanted.shape[1], generator)
        validation = max(2, len(inputs) // 10)
        epochs = min(MOST_EPOCHS, max(1, EXAMPLES // len(inputs)))
        fit_network(network, inputs[validation:], wanted[validation:], epochs, generator)
        with torch.no_grad():
            missed = network(inputs[:validation]) - wanted[:validation]
        missed = missed * deviations[1].flatten()
        true = groups.means(features[simulated.sets.members[:validation]])
        left = (mixtures @ heads.weight)[:validation] - (lengths * goals)[:validation] @ true
        noise = max(float(left.square().mean()), knowledge.linear.noise_variance)
        return cls(
            network,
            means,
            deviations,
            directions,
            law,
            (missed.T @ missed / validation).double(),
            noise,
            each,
            statistics.rectified,
        )

    @property
    def count(self) -> int:
        """Mixtures of a head."""
        return len(self.means[1])

    def __call__(self, heads: Heads) -> Tensor:
        """Features (s, g, d)."""
        return torch.cat([self._chunk(heads[i : i + CHUNK]) for i in range(0, len(heads), CHUNK)])

    def coefficients(self, heads: Heads) -> Tensor:
        """Coefficients (s, r, g) of the mixtures, in units of their lengths."""
        rows = _readings(heads, unit_mixtures(heads, self.each), self.directions)
        rows = ((rows - self.means[0]) / self.deviations[0]).clamp(-10, 10)
        with torch.no_grad():
            output = self.network(rows).view(-1, *self.means[1].shape)
        return output * self.deviations[1] + self.means[1]

    def _chunk(self, heads: Heads) -> Tensor:
        law, mixtures = self.law, unit_mixtures(heads, self.each)
        weight = mixtures @ heads.weight
        lengths = _lengths(weight).double()
        found = mixture_posterior(
            weight.double() @ law.basis.T / lengths,
            (mixtures @ heads.bias[..., None]).double()[..., 0] / lengths[..., 0],
            self.coefficients(heads).double(),
            self.errors,
            self.noise / lengths[..., 0].square(),
            law,
        )
        features = law.center + (found - law.mean) @ law.basis
        return (features.relu() if self.rectified else features).to(heads.weight)


def _readings(heads: Heads, mixtures: Tensor, directions: Tensor) -> Tensor:
    """What coefficients follow from (s, …): the mixtures' directions, lengths and outer weights."""
    weight = mixtures @ heads.weight
    lengths = _lengths(weight)
    products = (weight @ weight.mT) / (lengths * lengths.mT)
    upper = torch.triu_indices(*products.shape[1:], offset=1)
    biases = (mixtures @ heads.bias[..., None]) / lengths
    parts = [
        (weight @ directions.T / lengths).flatten(1),
        products[:, upper[0], upper[1]],
        biases.flatten(1),
        lengths.flatten(1).log(),
    ]
    if heads.second is not None and heads.second_bias is not None:
        outer = mixtures @ logit_weights(heads)[..., None]
        bias = heads.second_bias
        parts += [outer.flatten(1), bias[:, -1:] - (bias[:, :1] if bias.shape[1] > 1 else 0)]
    return torch.cat(parts, 1)


def _lengths(weight: Tensor) -> Tensor:
    """Lengths (s, r, 1) of mixtures; 1 where there is none."""
    lengths = weight.norm(dim=2, keepdim=True)
    return torch.where(lengths > 0, lengths, torch.ones_like(lengths))


def _spread(values: Tensor) -> Tensor:
    return values.std(0).clamp_min(1e-12)
