"""Heads on frozen backbones: their form, how they are trained, and that training unrolled.

Transfer learning as in Maciazek and Allison, "Vulnerability of Transfer-Learned Neural Networks to
Data Reconstruction Attacks in Small-Data Regime" (2025), Section 3: a backbone stays as it was
pre-trained, and a small head learns a new task on its features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from vestige.choices import check_fields, check_object
from vestige.errors import BadInput
from vestige.simulation.dp_sgd import clipping_factors
from vestige.simulation.training_sets import Makeup

if TYPE_CHECKING:  # bounds need scipy, which training does not
    from vestige.bounds import DPSGD

# As torch.optim.Adam.
BETAS, STABILITY = (0.9, 0.999), 1e-8

MOST_GROWTH = 1e30
"""Of weights under weight decay alone; beyond it single precision overflows."""


@dataclass(frozen=True)
class HeadTraining:
    """How a head is trained on the features of a small set of records.

    Initial weights are normal with deviation ``initial_deviation``, biases zero. Every epoch goes
    through all records, in one batch or in shuffled ones of ``batch_size``. Weight decay is the
    optimiser's own (biases too): L2, or for ``optimizer="adamw"`` that of Loshchilov and Hutter
    2019, Algorithm 2. ``schedule="linear"`` lets the rate of Adam and AdamW fall to zero over all
    steps, as trainers of transformers do by default. ``class_weights`` multiply the losses of the
    head's labels; the loss is the mean over the batch. With ``private``, DP-SGD takes the place of
    the epochs: its steps, Poisson sampling at its rate, clipping, noise, and division by the
    expected batch.
    ``makeup`` says how the training set is made up.
    """

    makeup: Makeup
    epochs: int
    learning_rate: float
    weight_decay: float = 0.0
    momentum: float = 0.0
    batch_size: int | None = None
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    schedule: Literal["constant", "linear"] = "constant"
    class_weights: tuple[float, ...] | None = None
    initial_deviation: float = 0.002
    private: DPSGD | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.epochs < 1 or not self.learning_rate > 0 or not 0 <= self.momentum < 1:
            raise BadInput(
                "A head needs at least one epoch, a positive learning rate and a momentum in "
                "[0, 1)."
            )
        if not self.weight_decay >= 0 or not 0 <= self.initial_deviation < math.inf:
            raise BadInput("Weight decay and the deviation of initial weights are not negative.")
        grows = self.learning_rate * self.weight_decay > 2 * (1 + self.momentum)
        if not self.adaptive and grows and not abs(self.initial_share) < MOST_GROWTH:
            raise BadInput(
                "Weight decay alone lets the weights of this training grow without end: "
                "learning_rate × weight_decay is at most 2·(1 + momentum)."
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise BadInput("The batch size is at least 1, or None for all records.")
        if self.adaptive and self.momentum:
            raise BadInput("Adam has a momentum of its own: leave momentum at 0.")
        if self.schedule != "constant" and not self.adaptive:
            raise BadInput(
                "A schedule is simulated for Adam and AdamW: leave schedule at 'constant' for SGD."
            )
        if self.class_weights is not None:
            if len(self.class_weights) != self.makeup.outputs:
                raise BadInput(
                    f"{len(self.class_weights)} class weights do not fit the "
                    f"{self.makeup.outputs} labels of the head: give one for each."
                )
            if not min(self.class_weights) > 0:
                raise BadInput("Class weights are positive.")
        self._check_private()

    def _check_private(self) -> None:
        if self.private is None:
            return
        from vestige.mechanisms import DPSGD

        check_object("private of HeadTraining", self.private, DPSGD)
        if self.optimizer != "sgd" or self.momentum or self.batch_size is not None:
            raise BadInput(
                "DP-SGD takes plain steps on Poisson samples: leave optimizer, momentum and "
                "batch_size as they are and give the sampling rate to the mechanism."
            )
        if self.private.clipping_norm is None:
            raise BadInput("DP-SGD clips gradients: give the mechanism its clipping_norm.")

    @property
    def adaptive(self) -> bool:
        """Whether each weight has a step size of its own (Adam, AdamW)."""
        return self.optimizer in ("adam", "adamw")

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 1."""
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * (1 - (step - 1) / self.steps)

    @property
    def steps(self) -> int:
        """Steps of the optimiser."""
        if self.private is not None:
            return self.private.steps
        return self.epochs * math.ceil(self.makeup.size / self.batch_length)

    @property
    def batch_length(self) -> int:
        """Records in a batch; the last one of an epoch may have fewer."""
        return min(self.batch_size or self.makeup.size, self.makeup.size)

    @property
    def decay(self) -> float:
        """What one step of SGD leaves of the weights: 1 − ηλ."""
        return 1 - self.learning_rate * self.weight_decay

    @property
    def initial_share(self) -> float:
        """κ: what all steps of SGD leave of the initial weights."""
        share, speed = 1.0, 0.0
        for _ in range(self.steps):
            speed = self.momentum * speed + self.weight_decay * share
            share -= self.learning_rate * speed
        return share

    @property
    def step_noise(self) -> float:
        """Deviation of the noise that one step of DP-SGD adds to a weight: ησC/(qN)."""
        private = self.private
        if private is None:
            return 0.0
        assert private.clipping_norm is not None
        expected = private.sampling_rate * self.makeup.size
        return self.learning_rate * private.noise_multiplier * private.clipping_norm / expected

    @property
    def final_noise(self) -> float:
        """Deviation of what is left of the noise of all steps of DP-SGD in a trained weight."""
        if self.private is None:
            return 0.0
        remaining = sum(self.decay ** (2 * step) for step in range(self.steps))
        return self.step_noise * remaining**0.5

    def batches(self, count: int, generator: torch.Generator | None) -> Iterator[Tensor]:
        """Which of ``count`` records each step sees; a shuffled order needs a generator."""
        size = min(self.batch_size or count, count)
        if size == count:
            for _ in range(self.epochs):
                yield torch.arange(count)
            return
        if generator is None:
            raise BadInput("Shuffled batches cannot be replayed without their order.")
        for _ in range(self.epochs):
            yield from torch.randperm(count, generator=generator).split(size)

    def record_weights(self, targets: Tensor) -> Tensor:
        """What multiplies each record's loss, from targets (…, labels)."""
        if self.class_weights is None:
            return torch.ones_like(targets[..., 0])
        return targets @ torch.tensor(self.class_weights, dtype=targets.dtype).to(targets.device)

    def taught(self, targets: Tensor) -> Tensor:
        """Targets (n, labels of the head) from targets (n, classes of the records)."""
        label_map = getattr(self.makeup, "label_map", None)
        if label_map is None:
            return targets
        onto = nn.functional.one_hot(torch.tensor(label_map), max(label_map) + 1)
        return targets @ onto.to(targets)


def initial_parameters(
    parameters: Mapping[str, Tensor], deviation: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """Weights drawn from N(0, deviation²), biases zero."""
    drawn = {}
    for name, like in parameters.items():
        if name.endswith("bias"):
            drawn[name] = torch.zeros_like(like)
        else:
            noise = torch.randn(like.shape, generator=generator, dtype=torch.float32)
            drawn[name] = (deviation * noise).to(like)
    return drawn


def unrolled(
    training: HeadTraining,
    loss_of_records: Callable[[Mapping[str, Tensor], Tensor], Tensor],
    weights: Tensor,
    initial: Mapping[str, Tensor],
    order: torch.Generator | None,
) -> dict[str, Tensor]:
    """Parameters after training, as a differentiable function.

    ``loss_of_records(parameters, members)`` gives the losses of some records, ``weights`` what
    multiplies each. Of DP-SGD only clipping and the expected sample are repeated, not its noise.
    """
    current = dict(initial)
    if training.private is not None:
        return _unrolled_privately(training, loss_of_records, weights, current)
    means = {n: torch.zeros_like(p) for n, p in current.items()}
    squares = dict(means)
    for step, members in enumerate(training.batches(len(weights), order), 1):

        def objective(parameters: Mapping[str, Tensor], members: Tensor = members) -> Tensor:
            return (weights[members] * loss_of_records(parameters, members)).mean()

        slopes = torch.func.grad(objective)(current)
        rate = training.rate(step)
        if training.optimizer == "adamw":
            current = {n: (1 - rate * training.weight_decay) * p for n, p in current.items()}
        else:
            slopes = {n: g + training.weight_decay * current[n] for n, g in slopes.items()}
        if training.adaptive:
            means = {n: BETAS[0] * means[n] + (1 - BETAS[0]) * g for n, g in slopes.items()}
            squares = {
                n: BETAS[1] * squares[n] + (1 - BETAS[1]) * g.square() for n, g in slopes.items()
            }
            scale = {n: (s / (1 - BETAS[1] ** step)).sqrt() + STABILITY for n, s in squares.items()}
            slopes = {n: m / (1 - BETAS[0] ** step) / scale[n] for n, m in means.items()}
        elif training.momentum:
            means = {n: training.momentum * means[n] + g for n, g in slopes.items()}
            slopes = means
        current = {n: p - rate * slopes[n] for n, p in current.items()}
    return current


def _unrolled_privately(
    training: HeadTraining,
    loss_of_records: Callable[[Mapping[str, Tensor], Tensor], Tensor],
    weights: Tensor,
    current: dict[str, Tensor],
) -> dict[str, Tensor]:
    assert training.private is not None
    assert training.private.clipping_norm is not None
    limit = training.private.clipping_norm

    def own_loss(parameters: Mapping[str, Tensor], member: Tensor) -> Tensor:
        return (weights[member[None]] * loss_of_records(parameters, member[None])).sum()

    everyone = torch.arange(len(weights))
    for _ in range(training.steps):
        slopes = torch.func.vmap(torch.func.grad(own_loss), in_dims=(None, 0))(current, everyone)
        squared = torch.stack([g.flatten(1).square().sum(1) for g in slopes.values()]).sum(0)
        factors = clipping_factors(squared.sqrt(), limit)
        current = {
            n: training.decay * p
            - training.learning_rate
            * torch.einsum("r,r...->...", factors, slopes[n])
            / len(weights)
            for n, p in current.items()
        }
    return current
