"""Fine-tuning of a decoder for what heads are judged by: true positives at a false positive rate.

A decoder that minimises the squared error spends itself on records that are drawn well anyway or
never will be. By the lemma of Neyman and Pearson the decoder wanted is the one whose errors to the
own record fall below a threshold as often as possible while errors to other records of the class
do so at a given rate α; both shares are counted by a sigmoid, so that they have slopes:

    L = E σ((e − t)/w) + λ·E σ((t − e₀)/w) + anchor·E e,     w = width·t

with errors e to the own record and e₀ to those of other examples of the same group. The threshold t
stays where the α quantile of e₀ was at the start: one that follows the errors e₀ has the trivial
optimum of drawing the same for all. λ follows the share of e₀ below t instead, and rises while that
is above α.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vestige import progress
from vestige.choices import check_fields
from vestige.priors.feature_decoders import FeatureDecoder, nearest_loss, training_mode

Batch = tuple[Tensor, Tensor, Tensor]
"""Decoder's inputs (b, d), groups (b,), the groups' records (b, k, *shape)."""

BATCHES_FOR_THRESHOLD = 8
"""Batches whose other records' errors say where the threshold is."""

PRICE_RATE = 0.02
"""How fast λ follows the false positive rate."""


@dataclass(frozen=True)
class FineTuning:
    """Settings of the fine-tuning; see the module.

    ``price`` is λ at the start, which may change by ``price_range`` in both directions.
    ``normalized`` divides errors by the mean distance of the group's records to their nearest
    neighbours, as the class-normalised rate does.
    """

    steps: int = 250
    batch_size: int = 384
    learning_rate: float = 3e-4
    false_positive_rate: float = 0.01
    price: float = 2.0
    price_range: float = 10.0
    width: float = 0.25
    anchor: float = 5.0
    normalized: bool = False

    def __post_init__(self) -> None:
        check_fields(
            self,
            counts=("steps",),
            least={"batch_size": 2, "price_range": 1},
            positive=("learning_rate", "false_positive_rate", "price", "width"),
            not_negative=("anchor",),
        )

    def __call__(self, decoder: FeatureDecoder, batches: Iterator[Batch], scales: Tensor) -> None:
        """Tune a decoder on batches of examples; errors are divided by the groups' scales (g,)."""
        with torch.no_grad():
            nulls = []
            for _ in range(BATCHES_FOR_THRESHOLD):
                features, groups, records = next(batches)
                nulls.append(errors_to_others(decoder(features, groups), groups, records, scales))
        others = torch.cat(nulls)
        if not len(others):
            return  # no group has two examples in a batch
        threshold = float(others.kthvalue(max(1, int(self.false_positive_rate * len(others))))[0])
        if not math.isfinite(threshold) or threshold <= 0:
            return
        parameters = [p.requires_grad_() for p in decoder.network.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=self.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        price, alpha = self.price, self.false_positive_rate
        with training_mode(decoder):
            for step in range(self.steps):
                features, groups, records = next(batches)
                with torch.enable_grad():
                    drawings = decoder(features, groups)
                    own = nearest_loss(drawings, records)
                    others = errors_to_others(drawings, groups, records, scales)
                    loss = tuning_loss(own / scales[groups], others, threshold, price, self.width)
                    total = loss + self.anchor * own.mean()
                    slopes = torch.autograd.grad(total, parameters)
                for parameter, slope in zip(parameters, slopes):
                    parameter.grad = slope
                optimizer.step()
                schedule.step()
                share = float((others.detach() < threshold).float().mean())
                price *= math.exp(PRICE_RATE * (min(share / alpha, 10) - 1))
                price = min(
                    max(price, self.price / self.price_range), self.price * self.price_range
                )
                if progress.report(step + 1, self.steps, float(total.detach())):
                    break
        for parameter in parameters:
            parameter.grad = None
            parameter.requires_grad_(False)


def tuning_loss(
    own: Tensor, others: Tensor, threshold: float, price: float, width: float
) -> Tensor:
    """E σ((e − t)/w) + λ·E σ((t − e₀)/w), w a share of t."""
    across = width * threshold
    missed = torch.sigmoid((own - threshold) / across).mean()
    return missed + price * torch.sigmoid((threshold - others) / across).mean()


def errors_to_others(drawings: Tensor, groups: Tensor, records: Tensor, scales: Tensor) -> Tensor:
    """Errors (p,) of drawings to the nearest record of other examples of the same group.

    All ordered pairs of a batch; ``records`` (b, k, *shape) are those of each example.
    """
    flat, pool = drawings.flatten(1), records.flatten(2)
    norms = flat.square().sum(1)[:, None]
    least = None
    for member in pool.unbind(1):
        gaps = norms + member.square().sum(1) - 2 * flat @ member.T
        least = gaps if least is None else torch.minimum(least, gaps)
    assert least is not None
    pairs = (groups[:, None] == groups) & ~torch.eye(len(groups), dtype=torch.bool).to(
        groups.device
    )
    first = torch.nonzero(pairs)[:, 0]
    return least[pairs] / flat.shape[1] / scales[groups[first]]
