"""What the steps of many heads' trainings see: batches, goals, weights of records, clipping.

Records come last: logits and residuals are (heads, outputs, records).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vestige.simulation.dp_sgd import weighted_factors

if TYPE_CHECKING:
    from vestige.simulation.head_training import HeadTraining

Share = float | Tensor
"""A record's part in the mean of a step: one number for all, or (s, 1, n)."""


@dataclass(frozen=True)
class HeadSteps:
    """A training, what it teaches, and the batches of its steps.

    ``goals`` (s or 1, outputs, n) are one-hot, or 0 and 1 for a single output. ``record_weights``
    (s or 1, 1, n) are what class weights make of them. ``shares`` has an entry for every step.
    """

    training: HeadTraining
    goals: Tensor
    record_weights: Tensor | None
    shares: Iterable[Share]

    def residuals(self, logits: Tensor, out: Tensor | None = None) -> Tensor:
        """Gradient of the loss with respect to logits, unweighted: probability − goal."""
        if logits.shape[1] == 1:
            chances = torch.sigmoid(logits, out=out)
        else:
            chances = torch.softmax(logits, 1, out=out)
        return torch.sub(chances, self.goals, out=out)

    def weighted(self, share: Share) -> Share:
        """What multiplies the residuals in a step that is not private."""
        return share if self.record_weights is None else share * self.record_weights

    def clipped(self, share: Share, squared_norms: Tensor) -> Tensor:
        """What multiplies them under DP-SGD, from the unweighted gradients' squared norms."""
        assert self.training.private is not None
        limit = self.training.private.clipping_norm
        assert limit is not None
        return weighted_factors(squared_norms, limit, self.record_weights) * share


def drawn_shares(
    training: HeadTraining,
    heads: int,
    like: Tensor,
    generator: torch.Generator,
    *,
    padding: int,
) -> Iterator[Share]:
    """Draw the batches of every head's steps, as tensors like ``like``.

    Behind the records they have ``padding`` zeros. Under DP-SGD they are Poisson samples over the
    expected batch.
    """
    records = training.makeup.size
    if training.private is not None:
        rate = training.private.sampling_rate
        for _ in range(training.steps):
            chances = torch.rand((heads, 1, records), generator=generator)
            sampled = (chances < rate).to(like).div_(rate * records)
            yield torch.nn.functional.pad(sampled, (0, padding))
        return
    size = training.batch_length
    if size == records:
        for _ in range(training.epochs):
            yield 1 / records
        return
    for batches in drawn_batches(training, heads, generator):
        padded = torch.nn.functional.pad(batches, (0, padding), value=-1)
        for number, first in enumerate(range(0, records, size)):
            members = (padded == number).unsqueeze(1).to(like)
            yield members.div_(min(size, records - first))


def drawn_batches(
    training: HeadTraining, heads: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Draw, for each epoch, the number (heads, records) of the batch that a record is in."""
    records = training.makeup.size
    for _ in range(training.epochs):
        places = torch.rand((heads, records), generator=generator).argsort(1)
        yield places // training.batch_length
