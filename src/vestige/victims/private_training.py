"""DP-SGD on known records and one more, every noisy gradient of which is seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.interfaces import GradientSequenceRelease
from vestige.records import Records
from vestige.simulation.alterations import split_like
from vestige.simulation.dp_sgd import PrivateSteps
from vestige.simulation.gradient_sequence import GradientSequenceSimulator
from vestige.simulation.local_training import Normalization
from vestige.simulation.losses import Loss, cross_entropy
from vestige.victims.client import joined
from vestige.victims.description import describe_client

if TYPE_CHECKING:
    from vestige.mechanisms import DPSGD


@dataclass(frozen=True)
class PrivateTraining:
    """DP-SGD on ``known`` ∪ {secret} from given weights; all its noisy gradients are released.

    Abadi et al., "Deep Learning with Differential Privacy" (2016), Algorithm 1, with Poisson
    sampling: every record enters a step independently with rate q, its gradient is clipped to norm
    C, and Gaussian noise of standard deviation σC joins their sum. The threat is the worst case
    that the guarantee is made for (Hayes, Mahloujifar and Balle, "Bounding Training Data
    Reconstruction in DP-SGD", 2023): the release holds every step's noisy sum and which *known*
    records it had sampled, so that their contribution can be subtracted; whether the secret was
    sampled, and the noise, are not released. A trainer who publishes only the final model tells
    less.

    The network runs in eval mode: batch norm would mix records, and then no gradient is a single
    record's own.
    """

    model: nn.Module
    known: Records
    mechanism: DPSGD
    learning_rate: float
    loss: Loss = cross_entropy
    normalization: Normalization | None = None

    releases = GradientSequenceRelease

    def __post_init__(self) -> None:
        check_fields(self)
        PrivateSteps(self.mechanism, self.learning_rate)  # refuses what does not fit

    @property
    def simulator(self) -> GradientSequenceSimulator:
        """The same training as far as it can be replayed: all but the noise and the sampling."""
        return GradientSequenceSimulator(
            self.model,
            self.loss,
            "sum",
            "eval",
            self.normalization,
            companions=self.known,
            private=PrivateSteps(self.mechanism, self.learning_rate),
        )

    def release(self, secret: Records, *, generator: torch.Generator) -> GradientSequenceRelease:
        """Train once and return what every step had added up, noise included."""
        if len(secret) != 1:
            raise BadInput(f"One record is unknown, not {len(secret)}: give a single secret.")
        simulator = self.simulator
        private, parameters, like = simulator.private, dict(simulator.parameters), simulator.like
        records = joined(self.known, secret)
        x, targets = simulator.batch(records)
        sequence: dict[str, list[torch.Tensor]] = {name: [] for name in parameters}
        sampling = []
        for _ in range(self.mechanism.steps):
            draws = torch.rand(len(records), generator=generator)
            sampled = (draws < self.mechanism.sampling_rate).to(like.device)
            total = simulator.clipped_sum(parameters, x[sampled], targets[sampled])
            noise = torch.randn(total.shape, generator=generator).to(like)
            noisy = split_like(total + private.noise * noise, parameters)
            for name, tensor in noisy.items():
                sequence[name].append(tensor)
            sampling.append(sampled[:-1].cpu())
            parameters = private.moved(parameters, noisy, len(records))
        return GradientSequenceRelease(
            {name: torch.stack(tensors) for name, tensors in sequence.items()},
            known_sampled=torch.stack(sampling),
        )

    def describe(self) -> dict[str, str]:
        """Settings a reader needs to repeat it."""
        private = self.mechanism
        described = describe_client("PrivateTraining", self.simulator)
        described["Training"] = (
            f"DP-SGD, {private.steps:,} steps, sampling rate {private.sampling_rate:g}, noise "
            f"multiplier {private.noise_multiplier:g}, clipping norm {private.clipping_norm:g}, "
            f"learning rate {self.learning_rate:g}"
        )
        return described
