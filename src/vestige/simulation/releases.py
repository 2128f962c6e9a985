"""What leaves the building: a gradient, an update, a trained model, or all gradients of DP-SGD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from vestige.choices import check_fields


@dataclass(frozen=True)
class ReleasedTensors:
    """Tensors by parameter name; ``buffers`` as the client's state holds them afterwards."""

    tensors: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor] = field(default_factory=dict)

    noun: ClassVar[str]

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class GradientRelease(ReleasedTensors):
    """One gradient."""

    noun = "gradient"


@dataclass(frozen=True)
class UpdateRelease(ReleasedTensors):
    """New minus old parameters after local training."""

    noun = "update"


@dataclass(frozen=True)
class ModelRelease(ReleasedTensors):
    """A trained model: its trained parameters."""

    noun = "model"


@dataclass(frozen=True)
class GradientSequenceRelease(ReleasedTensors):
    """The noisy sums of clipped gradients that T steps of DP-SGD made.

    ``tensors`` hold them by parameter name, (T, *shape). ``known_sampled`` (T, known) says which of
    the known records each step had sampled: with it and the initial weights an informed adversary
    follows the training and subtracts what the known records contributed.
    """

    known_sampled: Tensor | None = None

    noun = "training"


Release = GradientRelease | UpdateRelease | ModelRelease | GradientSequenceRelease
