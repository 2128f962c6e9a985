"""How a client prepares its records and trains on them by SGD; the same unrolled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.simulation.dp_sgd import ClippedNoise, clipped_gradient
from vestige.simulation.refusals import refusing

if TYPE_CHECKING:
    from vestige.simulation.simulator import Simulator


@dataclass(frozen=True)
class Normalization:
    """What the client does to a record before the network: (x − mean) / std, for each channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        check_fields(self)
        if len(self.mean) != len(self.std) or min(self.std, default=0) <= 0:
            raise BadInput("A normalisation needs one mean and one positive std per channel.")

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise records (n, channels, …); one mean and std serve all channels."""
        if len(self.mean) not in (1, x.shape[1]):
            raise BadInput(
                f"The normalisation has {len(self.mean)} means and deviations and the records have "
                f"{x.shape[1]} channel{'s' * (x.shape[1] > 1)}: give one of each for every channel."
            )
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
        check_fields(self)
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

    @property
    def length(self) -> float:
        """How far the steps go along a gradient that never changes."""
        velocity, length = 0.0, 0.0
        for _ in range(self.steps):
            velocity = self.momentum * velocity + 1.0
            length += self.learning_rate * velocity
        return length

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


def unrolled_sgd(
    simulator: Simulator,
    local: LocalTraining,
    private: ClippedNoise | None,
    x: Tensor,
    targets: Tensor,
    *,
    functional: bool = True,
    visit: Callable[[Mapping[str, Tensor], slice], None] | None = None,
) -> dict[str, Tensor]:
    """Parameters after training on x, unrolled and differentiable.

    Gradients are clipped where the victim clips them; noise cannot be replayed and is left out.
    ``functional=False`` uses plain autograd, which does not run under ``vmap``. ``visit`` is called
    before every step with its parameters and the records it sees.
    """
    current, velocity = dict(simulator.parameters), None
    if not functional:
        current = {n: p.detach().requires_grad_() for n, p in current.items()}
    for batch in local.batches(x.shape[0]):
        if visit is not None:
            visit(current, batch)
        if private is not None:
            step = clipped_gradient(simulator, private, current, x[batch], targets[batch])
        elif functional:
            step = torch.func.grad(simulator.loss_of)(current, x[batch], targets[batch])
        else:
            with refusing():
                step = gradient_of(simulator.loss_of(current, x[batch], targets[batch]), current)
        if velocity is not None:
            step = {n: local.momentum * velocity[n] + g for n, g in step.items()}
        velocity = step if local.momentum else None
        current = {n: p - local.learning_rate * step[n] for n, p in current.items()}
    return current


def gradient_of(loss: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gradient of a loss by plain autograd, itself differentiable; zero where nothing depends."""
    slopes = torch.autograd.grad(
        loss,
        list(parameters.values()),
        create_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(parameters, slopes))
