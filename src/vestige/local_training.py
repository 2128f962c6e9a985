"""How a client prepares its records and trains on them before it sends anything."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.errors import BadInput


@dataclass(frozen=True)
class Normalization:
    """What the client does to a record before the network: (x − mean) / std, for each channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or min(self.std, default=0) <= 0:
            raise BadInput("A normalisation needs one mean and one positive std per channel.")

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise records (n, channels, …)."""
        shape = (1, -1) + (1,) * (x.dim() - 2)
        mean = torch.tensor(self.mean, dtype=x.dtype, device=x.device).reshape(shape)
        std = torch.tensor(self.std, dtype=x.dtype, device=x.device).reshape(shape)
        return (x - mean) / std


@dataclass(frozen=True)
class LocalTraining:
    """What a victim does before it sends its update or its model: plain SGD, in a fixed order."""

    steps: int
    learning_rate: float
    batch_size: int | None = None
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.learning_rate <= 0 or not 0 <= self.momentum < 1:
            raise BadInput(
                "Local training needs at least one step, a positive learning rate and a momentum "
                "in [0, 1)."
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise BadInput("The local batch size is at least 1, or None for the whole batch.")

    def batches(self, count: int) -> list[slice]:
        """Which of ``count`` records each step sees: consecutive batches, again from the start."""
        size = min(self.batch_size or count, count)
        epoch = [slice(start, min(start + size, count)) for start in range(0, count, size)]
        return [epoch[step % len(epoch)] for step in range(self.steps)]

    def summed_noise(self, count: int, *, mean: bool) -> float:
        """Standard deviation of the summed steps if each has unit noise on its sum of gradients.

        In units of the learning rate, for ``count`` records and a loss that is a mean or not.
        Momentum repeats the noise of a step in all later ones, m^i times after i of them.
        """
        variance = 0.0
        for step, batch in enumerate(self.batches(count)):
            left = self.steps - step
            repeated = sum(self.momentum**i for i in range(left)) if self.momentum else 1.0
            variance += (repeated / (batch.stop - batch.start if mean else 1)) ** 2
        return variance**0.5
