"""A released head read as its first layer, which holds the features, and what follows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.errors import BadInput
from vestige.heads import HeadedModel, HeadTraining
from vestige.observations import Public


@dataclass(frozen=True)
class Heads:
    """Heads, their number first: ``weight`` (s, k, d), ``bias`` (s, k) of the first layer.

    ``second`` (s, outputs, k) and ``second_bias`` (s, outputs) are those of the layer after k
    hidden units; None for linear heads.
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

    def in_order(self) -> Heads:
        """The same function with hidden units in the order of their outgoing weights.

        Initial weights are drawn alike for all units, so nothing else tells them apart.
        """
        if self.second is None:
            return self
        order = self.second[:, 0].argsort(1)
        rows = order[:, :, None].expand(-1, -1, self.weight.shape[2])
        columns = order[:, None].expand(-1, self.second.shape[1], -1)
        return Heads(
            self.weight.gather(1, rows),
            self.bias.gather(1, order),
            self.second.gather(2, columns),
            self.second_bias,
        )


def headed_model(public: Public) -> tuple[HeadedModel, HeadTraining]:
    """The model and the training of its head, or what is missing."""
    simulator = public.simulator
    if simulator.head is None or not isinstance(simulator.model, HeadedModel):
        raise BadInput(
            "Head inversion reads the head of a frozen backbone: audit a ReleasedHead against a "
            "WeakAdversary."
        )
    return simulator.model, simulator.head


def read_head(tensors: Mapping[str, Tensor], public: Public) -> Heads:
    """One released head, checked against the form that is known."""
    known = public.simulator.parameters
    foreign = sorted(set(tensors) ^ set(known))
    if foreign:
        raise BadInput(
            f"The release and the known head differ in {foreign[0]!r}: attack it with the form it "
            "was trained in."
        )
    for name, like in known.items():
        if tensors[name].shape != like.shape:
            raise BadInput(
                f"The released {name} has the shape {tuple(tensors[name].shape)} instead of "
                f"{tuple(like.shape)}: attack it with the form it was trained in."
            )
        if not bool(torch.isfinite(tensors[name]).all()):
            raise BadInput(f"The released {name} is NaN or infinite: release a sound head.")
    model, _ = headed_model(public)
    own = {name: tensors[name].detach().float().cpu()[None] for name in known}
    if model.hidden is None:
        return Heads(own["head.weight"], own["head.bias"])
    first, last = (
        (own["head.0.weight"], own["head.0.bias"]),
        (own["head.2.weight"], own["head.2.bias"]),
    )
    return Heads(*first, *last).in_order()
