"""Heads trained on training sets of the prior, with their coefficients: what estimators learn from.

The same law as the victim's training, in coefficients: initial weights, shuffled batches, and of
DP-SGD sampling, clipping and noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.attacks.heads.dual_training import clipped, private_scale, residuals
from vestige.attacks.heads.reading import Heads
from vestige.errors import BadInput
from vestige.heads import HeadTraining
from vestige.simulation import one_hot
from vestige.training_sets import TrainingSets


@dataclass(frozen=True)
class SimulatedHeads:
    """Heads, the coefficients (s, n, k) of their first layer, and the sets they were trained on."""

    heads: Heads
    coefficients: Tensor
    sets: TrainingSets

    @classmethod
    def joined(cls, parts: Sequence[SimulatedHeads]) -> SimulatedHeads:
        """All heads of several parts."""
        sets = TrainingSets(
            torch.cat([part.sets.members for part in parts]),
            torch.cat([part.sets.targets for part in parts]),
        )
        coefficients = torch.cat([part.coefficients for part in parts])
        return cls(Heads.joined([part.heads for part in parts]), coefficients, sets)


def simulate(
    training: HeadTraining,
    outputs: int,
    hidden: int | None,
    features: Tensor,
    sets: TrainingSets,
    *,
    generator: torch.Generator,
) -> SimulatedHeads:
    """Train a head on each of the sets, whose members' features are rows of ``features``."""
    check_training(training, hidden)
    x = features[sets.members]
    goals = one_hot(sets.targets, training.makeup.outputs, x.dtype)
    run = _Run(training, x, goals, generator)
    return run.hidden(outputs, hidden, sets) if hidden else run.linear(outputs, sets)


def check_training(training: HeadTraining, hidden: int | None) -> None:
    """Refuse trainings that have no coefficients."""
    if training.optimizer == "adam":
        raise BadInput(
            "Adam moves weights out of the span of the features, where head inversion cannot "
            "follow: it reads heads trained by SGD."
        )
    if hidden is not None and training.private is not None:
        raise BadInput("Head inversion reads private heads that are linear: leave hidden at None.")


class _Run:
    """One batch of heads in training."""

    def __init__(
        self, training: HeadTraining, x: Tensor, goals: Tensor, generator: torch.Generator
    ) -> None:
        self.training, self.x, self.goals, self.generator = training, x, goals, generator
        self.gram = x @ x.mT + 1
        flat = goals.flatten(0, 1)
        self.weights = training.record_weights(flat).view(goals.shape[:2])[:, :, None]

    def linear(self, outputs: int, sets: TrainingSets) -> SimulatedHeads:
        training, x = self.training, self.x
        norms = self.gram.diagonal(dim1=1, dim2=2)[:, :, None].sqrt()
        start = self._drawn(outputs, x.shape[2])
        state = [x @ start.mT, torch.zeros_like(x[..., :outputs]), start.new_ones(())]
        speeds = [torch.zeros_like(value) for value in state]
        # Noise of the weights and, as its last column, of the biases.
        drift = x.new_zeros((len(x), outputs, x.shape[2] + 1)) if training.private else None
        for members in self._members():
            logits = state[0]
            if drift is not None:
                logits = logits + x @ drift[:, :, :-1].mT + drift[:, None, :, -1]
            pull = members * clipped(training, self.weights * residuals(logits, self.goals), norms)
            self._move(state, speeds, [self.gram @ pull, pull, 0.0])
            if drift is not None:
                noise = torch.randn(drift.shape, generator=self.generator)
                drift = training.decay * drift + private_scale(training) * noise
        _, found, kept = state
        weight, bias = kept * start + found.mT @ x, found.sum(1)
        if drift is not None:
            weight, bias = weight + drift[:, :, :-1], bias + drift[:, :, -1]
        return SimulatedHeads(Heads(weight, bias), found, sets)

    def hidden(self, outputs: int, units: int, sets: TrainingSets) -> SimulatedHeads:
        x = self.x
        start = self._drawn(units, x.shape[2])
        state = [
            x @ start.mT,
            torch.zeros_like(x[..., :units]),
            start.new_ones(()),
            self._drawn(outputs, units),
            x.new_zeros((len(x), outputs)),
        ]
        speeds = [torch.zeros_like(value) for value in state]
        for members in self._members():
            inner, _, _, second, second_bias = state
            active = inner.relu()
            outer = active @ second.mT + second_bias[:, None]
            pull = members * self.weights * residuals(outer, self.goals)
            back = (pull @ second) * (inner > 0)
            slopes = [self.gram @ back, back, 0.0, pull.mT @ active, pull.sum(1)]
            self._move(state, speeds, slopes)
        _, found, kept, second, second_bias = state
        heads = Heads(kept * start + found.mT @ x, found.sum(1), second, second_bias)
        order = second[:, 0].argsort(1)[:, None].expand_as(found)
        return SimulatedHeads(heads.in_order(), found.gather(2, order), sets)

    def _move(
        self, state: list[Tensor], speeds: list[Tensor], slopes: list[Tensor | float]
    ) -> None:
        training = self.training
        for place, slope in enumerate(slopes):
            whole = training.weight_decay * state[place] + slope
            speeds[place] = training.momentum * speeds[place] + whole
            state[place] = state[place] - training.learning_rate * speeds[place]

    def _drawn(self, *shape: int) -> Tensor:
        noise = torch.randn((len(self.x), *shape), generator=self.generator)
        return self.training.initial_deviation * noise

    def _members(self) -> Iterator[Tensor]:
        """What multiplies every record (s, n, 1) in each step: the batch's mean, or its share."""
        training, (count, size) = self.training, self.x.shape[:2]
        if training.private is not None:
            rate = training.private.sampling_rate
            for _ in range(training.private.steps):
                sampled = torch.rand((count, size, 1), generator=self.generator) < rate
                yield sampled.float() / (rate * size)
            return
        taken = min(training.batch_size or size, size)
        for _ in range(training.epochs):
            if taken == size:
                yield self.x.new_full((count, size, 1), 1 / size)
                continue
            places = torch.rand((count, size, 1), generator=self.generator).argsort(1).argsort(1)
            for first in range(0, size, taken):
                inside = (places >= first) & (places < first + taken)
                yield inside.float() / min(taken, size - first)
