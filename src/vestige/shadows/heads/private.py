"""Heads trained by DP-SGD, drawn in the span of their features, exact in law.

Noise of DP-SGD is the same in every direction of a layer's weights, and only its part in the span
of the features, each with a 1 for the bias, is ever seen by a later gradient. So with a factor
G = F·Fᵀ of the Gram matrix, which is X̃ = F·E with orthonormal rows E, a step draws N normal numbers
for an output and not D + 1: the coordinates B of the layer along E move by B ← aB − η(Δ·F + noise),
and its outputs are aᵗ·P₀ + B·Fᵀ. The part across the span is drawn once, at the end, with the
variance that decay leaves of all steps together.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vestige.shadows.heads.dual import bias_gram
from vestige.shadows.heads.weight_space import Drawing, drawn_normal
from vestige.simulation.head_training import HeadTraining

WORST_PIVOT = 1e-3
"""Cholesky factors whose pivots are smaller, in units of the norm, are left for eigenvectors."""


def span_factor(gram: Tensor) -> tuple[Tensor, Tensor]:
    """F (s, n, n) with F·Fᵀ = gram, and its inverse; on the range alone where gram is singular."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    pivots = factor.diagonal(dim1=1, dim2=2) / gram.diagonal(dim1=1, dim2=2).sqrt()
    if not bool(failed.any()) and float(pivots.min()) > WORST_PIVOT:
        unit = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
        return factor, torch.linalg.solve_triangular(factor, unit.expand_as(gram), upper=False)
    values, vectors = torch.linalg.eigh(gram.double())
    # A Gram matrix of float32 features is known to their rounding and no better.
    least = torch.finfo(gram.dtype).eps * gram.shape[1] * values[:, -1:]
    found = values > least
    roots = torch.where(found, values, 0).sqrt()
    inverse = torch.where(found, roots, 1).reciprocal() * found
    factor = vectors * roots.unsqueeze(1)
    return factor.to(gram), (vectors * inverse.unsqueeze(1)).mT.to(gram)


class PrivateSpan:
    """A layer under DP-SGD, on features (s, n, d), from initial weights (s, outputs, d).

    Its outputs are those at the start times what decay leaves of them, plus ``coordinates``
    (s, outputs, n) times the transposed ``factor`` (s, n, n).
    """

    def __init__(
        self,
        training: HeadTraining,
        features: Tensor,
        start: Tensor,
        generator: torch.Generator,
        padding: int = 0,
        draw: Drawing = drawn_normal,
    ) -> None:
        self._draw = draw
        self._training, self._features, self._start = training, features, start
        self._generator, self._records = generator, features.shape[1]
        gram = bias_gram(features)
        norms = gram.diagonal(dim1=1, dim2=2).unsqueeze(1)
        self.squared_norms = nn.functional.pad(norms, (0, padding))
        factor, self._inverse = span_factor(gram)
        self.factor = nn.functional.pad(factor, (0, padding) * 2)
        self.start_products = nn.functional.pad(torch.bmm(start, features.mT), (0, padding))
        self.products = self.start_products.clone()
        self.coordinates = torch.zeros_like(self.products)
        self._taken = 0

    def step(self, slopes: Tensor, rate: float) -> None:
        """Go against clipped gradients of the loss with respect to ``products``, with noise."""
        self._taken += 1
        kept, coordinates = self._training.decay, self.coordinates
        coordinates.baddbmm_(slopes, self.factor, beta=kept, alpha=-rate)
        own = coordinates[..., : self._records]
        own.add_(self._draw(own.shape, self._training.step_noise, own, self._generator))
        torch.baddbmm(
            self.start_products,
            coordinates,
            self.factor.mT,
            beta=kept**self._taken,
            out=self.products,
        )

    def finish(self, weights: Tensor, biases: Tensor) -> None:
        """Write the weights and biases at the end into these."""
        start, deviation = self._start, self._training.final_noise
        noise = self._draw(start.shape, deviation, start, self._generator)
        bias_noise = self._draw(start.shape[:2], deviation, start, self._generator)
        # The noise's own part in the span gives way to the one that training has seen.
        seen = torch.bmm(noise, self._features.mT).add_(bias_noise.unsqueeze(2))
        coordinates = self.coordinates[..., : self._records] - seen @ self._inverse.mT
        coefficients = torch.bmm(coordinates, self._inverse)
        noise.add_(start, alpha=self._training.initial_share)
        weights.copy_(noise.baddbmm_(coefficients, self._features))
        torch.add(bias_noise, coefficients.sum(2), out=biases)
