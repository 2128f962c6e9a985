"""A trained reconstructor of heads: weights in, drawings out; and a Gaussian in place of heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from vestige.shadows.standardization import Standardization

AT_A_TIME = 256
"""Drawings made at a time."""


@dataclass(frozen=True)
class HeadReader:
    """Draws what heads were trained on: weights (n, size) → records (n, drawings, *shape).

    ``classes`` are those that are drawn one by one, none if there is a single drawing.
    ``standard_shadows`` (s, coordinates) are the standardised shadow heads that the statistics came
    from. ``true_positive_rate`` and ``step`` are those of the best validation, by which so many
    ``shadows`` had been learned from; training went on for ``steps``.
    """

    standardization: Standardization
    standard_shadows: Tensor
    network: nn.Module
    classes: tuple[int, ...]
    true_positive_rate: float = 0.0
    step: int = 0
    steps: int = 0
    shadows: int = 0

    def __call__(self, weights: Tensor) -> Tensor:
        """Draw from the weights of heads, as the simulator's parameters are ordered."""
        return self.drawn(self.standardization(weights.float().cpu()))

    def drawn(self, standard: Tensor) -> Tensor:
        """Draw from standardised weights (n, coordinates)."""
        return to_records(drawings(self.network, standard, len(self.classes)))

    def surrogates(self, count: int, *, generator: torch.Generator) -> Tensor:
        """Standardised weights (count, coordinates) from a Gaussian in place of trained heads.

        Maciazek and Allison 2025, Algorithms 2 and 3: N(0, Cov) with the covariance of the
        normalised weights. Sums of centred shadow heads with independent normal factors have
        exactly their empirical covariance, which is never formed; its rank is below the number of
        shadows.
        """
        centred = self.standard_shadows - self.standard_shadows.mean(0)
        factors = torch.randn((count, len(centred)), generator=generator)
        return factors @ centred / (len(centred) - 1) ** 0.5


def network_inputs(standard: Tensor, drawing: Tensor, classes: int) -> Tensor:
    """Standardised weights (n, coordinates), and which class to draw as a one-hot vector."""
    if classes == 0:
        return standard
    return torch.cat([standard, nn.functional.one_hot(drawing, classes).to(standard)], 1)


def drawings(network: nn.Module, standard: Tensor, classes: int) -> Tensor:
    """All drawings (n, drawings, *shape) of heads, in [−1, 1], on the CPU."""
    device, each = next(network.parameters()).device, max(classes, 1)
    heads = torch.arange(len(standard)).repeat_interleave(each)
    which = torch.arange(each).repeat(len(standard))
    parts = []
    was_training = network.training
    network.eval()
    with torch.no_grad():
        for some, wanted in zip(heads.split(AT_A_TIME), which.split(AT_A_TIME)):
            rows = network_inputs(standard[some], wanted, classes)
            parts.append(network(rows.to(device)).cpu())
    network.train(was_training)
    images = torch.cat(parts)
    return images.reshape(len(standard), each, *images.shape[1:])


def to_network(x: Tensor) -> Tensor:
    """Pictures from [0, 1] to [−1, 1], in which distances and thresholds of the paper are."""
    return 2 * x.float() - 1


def to_records(x: Tensor) -> Tensor:
    """Pictures from [−1, 1] to [0, 1], in which records are."""
    return (x + 1) / 2
