"""Heads, released or simulated: the first layer, which holds the features, and what follows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vestige import progress
from vestige.errors import BadInput
from vestige.networks.headed_model import HeadedModel
from vestige.shadows.heads.factory import HeadFactory, ShadowHeads
from vestige.simulation.head_training import HeadTraining
from vestige.simulation.kinds import head_simulator
from vestige.simulation.training_sets import TrainingSets

if TYPE_CHECKING:
    from vestige.interfaces import Public

AT_A_TIME = 500
"""Heads that are simulated between two reports of progress."""


@dataclass(frozen=True)
class Heads:
    """Heads, their number first: ``weight`` (s, k, d), ``bias`` (s, k) of the first layer.

    ``second`` (s, outputs, k) and ``second_bias`` (s, outputs) are those of the layer after k
    hidden units, of several such layers their product and the last one's; None for linear heads.
    """

    weight: Tensor
    bias: Tensor
    second: Tensor | None = None
    second_bias: Tensor | None = None

    def __len__(self) -> int:
        return len(self.weight)

    def __getitem__(self, some: slice) -> Heads:
        second, bias = self.second, self.second_bias
        return Heads(
            self.weight[some],
            self.bias[some],
            None if second is None else second[some],
            None if bias is None else bias[some],
        )

    @classmethod
    def joined(cls, parts: Sequence[Heads]) -> Heads:
        """All heads of several parts of one form."""
        second = [part.second for part in parts if part.second is not None]
        biases = [part.second_bias for part in parts if part.second_bias is not None]
        return cls(
            torch.cat([part.weight for part in parts]),
            torch.cat([part.bias for part in parts]),
            torch.cat(second) if second else None,
            torch.cat(biases) if biases else None,
        )

    @classmethod
    def of_rows(cls, rows: Tensor, model: HeadedModel) -> Heads:
        """Heads of this form from all their parameters (s, size), in the model's order."""
        first, outputs, count = model.hidden or model.outputs, model.outputs, len(rows)
        ends = [first * model.width, first * (model.width + 1)]
        weight, bias, rest = rows.tensor_split(ends, 1)
        weight = weight.reshape(count, first, model.width)
        if model.hidden is None:
            return cls(weight, bias)
        # Of several outer layers their product: what a unit does to the logits while all others
        # let pass, whatever the order of the units between.
        second, second_bias = None, rest[:, :0]
        for size in (*model.hidden_sizes[1:], outputs):
            inputs = first if second is None else second.shape[1]
            own, second_bias, rest = rest.tensor_split([size * inputs, size * (inputs + 1)], 1)
            own = own.reshape(count, size, inputs)
            second = own if second is None else own @ second
        return cls(weight, bias, second, second_bias)

    def unit_order(self) -> Tensor:
        """The order (s, k) of the first layer's outputs by the weights that leave them.

        Initial weights are drawn alike for all hidden units, so nothing else tells them apart.
        """
        if self.second is None:
            return torch.arange(self.bias.shape[1]).expand_as(self.bias)
        return self.second[:, 0].argsort(1)

    def in_order(self) -> Heads:
        """The same function with hidden units in their ``unit_order``."""
        if self.second is None:
            return self
        order = self.unit_order()
        rows = order[:, :, None].expand(-1, -1, self.weight.shape[2])
        columns = order[:, None].expand(-1, self.second.shape[1], -1)
        return Heads(
            self.weight.gather(1, rows),
            self.bias.gather(1, order),
            self.second.gather(2, columns),
            self.second_bias,
        )


def read_head(tensors: Mapping[str, Tensor], public: Public) -> Heads:
    """One released head, checked against the form that is known."""
    simulator = head_simulator(public.simulator)
    return Heads.of_rows(simulator.row(tensors)[None], simulator.model).in_order()


@dataclass(frozen=True)
class SimulatedHeads:
    """Heads with hidden units in order, and the sets they were trained on.

    ``coefficients`` (s, n, k) are those of the first layer, where the factory gives them.
    """

    heads: Heads
    sets: TrainingSets
    coefficients: Tensor | None = None

    @classmethod
    def drawn(cls, factory: HeadFactory, count: int, generator: torch.Generator) -> SimulatedHeads:
        """Train heads on sets of the factory's records."""
        parts = []
        for start in range(0, count, AT_A_TIME):
            size = min(AT_A_TIME, count - start)
            parts.append(factory.draw(size, generator=generator))
            progress.report(start + size, count)
        shadow_heads = ShadowHeads.joined(parts)
        if not bool(shadow_heads.weights.isfinite().all()):
            raise BadInput(
                "Simulated heads diverge, their weights become NaN or infinite: lower the "
                "learning_rate of the training, or check that it is the head's own."
            )
        heads, coefficients = Heads.of_rows(shadow_heads.weights, factory.model), None
        if shadow_heads.coefficients is not None:
            rows = heads.unit_order()[:, :, None].expand_as(shadow_heads.coefficients)
            coefficients = shadow_heads.coefficients.gather(1, rows).mT
        return cls(heads.in_order(), shadow_heads.sets, coefficients)


def check_training(training: HeadTraining, hidden: int | None) -> None:
    """Refuse trainings of heads with hidden layers whose features cannot be estimated."""
    if hidden is None:
        return
    if training.adaptive:
        raise BadInput(
            "Head inversion reads heads with hidden layers that SGD trained: what Adam makes of "
            "their features could not be learned, so use HeadReconstructor."
        )
    if training.private is not None:
        raise BadInput("Head inversion reads private heads that are linear: leave hidden at None.")
