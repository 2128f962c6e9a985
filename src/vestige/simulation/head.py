"""The trained head of a frozen backbone, as a function of the records it was trained on."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Self

import torch
from torch import Tensor

from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.networks.headed_model import HeadedModel
from vestige.simulation.head_training import HeadTraining, initial_parameters, unrolled
from vestige.simulation.released_tensors import check_tensors
from vestige.simulation.releases import ModelRelease
from vestige.simulation.simulator import Simulator


@dataclass(frozen=True)
class HeadSimulator(Simulator):
    """Training of the head of a ``HeadedModel``, which is then released.

    Every run draws its own initial weights and the order of its batches. ``order`` seeds the latter
    in a run that has started; until then it is None and the weights are only an example.
    """

    model: HeadedModel
    _: KW_ONLY
    training: HeadTraining
    order: int | None = None

    releases = ModelRelease

    def __post_init__(self) -> None:
        if not isinstance(self.model, HeadedModel):
            raise BadInput("Training of a head needs a HeadedModel: wrap the backbone in one.")
        check_fields(self)

    def __call__(self, x: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Parameters of the head after its training, unrolled and differentiable."""
        network, training = self.network, self.training
        assert isinstance(network, HeadedModel)
        features, taught = network.features(self.inputs(x)), training.taught(targets)

        def losses(parameters: Mapping[str, Tensor], members: Tensor) -> Tensor:
            outputs = network.head_outputs(parameters, features[members])
            return self.loss(outputs, taught[members])

        order = None if self.order is None else torch.Generator().manual_seed(self.order)
        return unrolled(training, losses, training.record_weights(taught), self.parameters, order)

    def row(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """A released head as a row of weights (size,), in the order of the parameters."""
        check_tensors(tensors, self.parameters, whole=True)
        return torch.cat([tensors[n].detach().float().cpu().flatten() for n in self.parameters])

    def started(self, generator: torch.Generator) -> Self:
        """The simulator of one run, which draws its initial weights, then its order."""
        if self.order is not None:
            return self
        drawn = initial_parameters(self.parameters, self.training.initial_deviation, generator)
        order = int(torch.randint(2**62, (), generator=generator))
        model = copy.deepcopy(self.model)
        model.load_state_dict(drawn, strict=False)
        return replace(self, model=model, order=order)
