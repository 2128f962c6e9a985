"""Gaussian noise on the gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from vestige.bounds.errors.release_defense import ReleaseDefense
from vestige.choices import check_fields
from vestige.defenses.altering import Altering
from vestige.errors import BadInput
from vestige.simulation.alterations import ClientMemory, Reading

OUTSTANDING = 4.0
"""Deviations of the noise beyond which an entry is more than noise."""


@dataclass(frozen=True)
class GradientNoise(Altering):
    """Adds noise of standard deviation ``deviation`` to every entry (Zhu, Liu and Han 2019, §5.1).

    Nothing is clipped, so one record may move the gradient by any amount and no guarantee follows;
    :class:`PrivateGradients` is the defence that has one. A reader knows the deviation.
    """

    deviation: float

    name = "Noise"
    why = "noise without clipping bounds no record's influence"
    random = True

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.deviation < math.inf:
            raise BadInput(
                f"The deviation of gradient noise is positive and finite, not {self.deviation!r}: "
                "say Undefended() for none."
            )

    @property
    def setting(self) -> str:
        """The deviation in words."""
        return f"σ {self.deviation:g}"

    @property
    def error_bound(self) -> ReleaseDefense:
        """Noise is read from the release: nothing else is done."""
        return ReleaseDefense()

    def sent(
        self, gradient: Tensor, sizes: Sequence[int], *, generator: Generator, memory: ClientMemory
    ) -> Tensor:
        """Send the gradient with noise."""
        noise = torch.randn(gradient.shape, generator=generator, dtype=gradient.dtype)
        return gradient + self.deviation * noise.to(gradient.device)

    def reading(self, released: Tensor, sizes: Sequence[int]) -> Reading:
        """All entries are there, with noise."""
        return Reading(deviation=self.deviation)

    def carried(self, earlier: Reading, released: Tensor) -> Reading:
        """Zeros of an earlier mask are noise now: only large entries surely carry a value."""
        if earlier.kept is None:
            return earlier
        return Reading(released.abs() > OUTSTANDING * self.deviation, earlier.deviation, False)
