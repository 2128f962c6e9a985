"""DP-SGD on known records and one more, every noisy gradient of which is seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from vestige.errors import BadInput
from vestige.gradient_sequences import clipped_sum
from vestige.observations import GradientSequenceRelease, Release
from vestige.private_steps import PrivateSteps
from vestige.records import Records
from vestige.simulation import Loss, Normalization, Simulator, cross_entropy, one_hot
from vestige.victims.description import describe_client
from vestige.victims.known_records import joined

if TYPE_CHECKING:
    from vestige.bounds import DPSGD


@dataclass(frozen=True)
class PrivateTraining:
    """DP-SGD on ``known`` ∪ {secret} from given weights; all its noisy gradients are released.

    Abadi et al., "Deep Learning with Differential Privacy" (2016), Algorithm 1, with Poisson
    sampling: every record enters a step independently with rate q, its gradient is clipped to norm
    C, and Gaussian noise of standard deviation σC joins their sum. The threat is the worst case
    that the guarantee is made for (Hayes, Mahloujifar and Balle, "Bounding Training Data
    Reconstruction in DP-SGD", 2023): the release holds every step's noisy sum and which *known*
    records it had sampled, so that their contribution can be subtracted; whether the secret was
    sampled, and the noise, are told to nobody. A trainer who publishes only the final model tells
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

    def __post_init__(self) -> None:
        PrivateSteps(self.mechanism, self.learning_rate)  # refuses what does not fit

    @property
    def releases(self) -> type[Release]:
        """The kind of release."""
        return GradientSequenceRelease

    @property
    def simulator(self) -> Simulator:
        """The same training as far as it can be replayed: all but the noise and the sampling."""
        return Simulator(
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
        private = PrivateSteps(self.mechanism, self.learning_rate)
        parameters = dict(simulator.parameters)
        like = next(iter(parameters.values()))
        records = joined(self.known, secret).to(like.device)
        x, targets = records.x.to(like.dtype), one_hot(records.y, records.classes, like.dtype)
        sequence: dict[str, list[torch.Tensor]] = {name: [] for name in parameters}
        sampling = []
        for _ in range(self.mechanism.steps):
            draws = torch.rand(len(records), generator=generator)
            sampled = (draws < self.mechanism.sampling_rate).to(like.device)
            total = clipped_sum(simulator, private, parameters, x[sampled], targets[sampled])
            noise = torch.randn(total.shape, generator=generator).to(like)
            noisy = _by_name(total + private.noise * noise, parameters)
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


def _by_name(flat: torch.Tensor, parameters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A flat vector cut into the shapes of the parameters, in their order."""
    pieces = flat.split([value.numel() for value in parameters.values()])
    return {
        name: piece.reshape(value.shape) for (name, value), piece in zip(parameters.items(), pieces)
    }
