"""Clipping: of a whole gradient, or of every record's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from vestige.bounds.errors.release_defense import ReleaseDefense
from vestige.choices import check_fields
from vestige.defenses.altering import Altering, BaseDefense
from vestige.defenses.defended_victims import rebuild
from vestige.errors import BadInput
from vestige.interfaces import Victim
from vestige.simulation.alterations import ClientMemory, Reading, mark_uncertain
from vestige.simulation.dp_sgd import ClippedNoise, clipping_factors


@dataclass(frozen=True)
class _Clipping(BaseDefense):
    """What both kinds of clipping share: a norm, of which a smaller one protects more."""

    norm: float

    why = "clipping without noise hides nothing"

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.norm < math.inf:
            raise BadInput(f"A clipping norm is positive and finite, not {self.norm!r}.")

    @property
    def ordering(self) -> float:
        """A smaller norm protects more."""
        return -self.norm

    @property
    def setting(self) -> str:
        """The norm in words."""
        return f"norm {self.norm:g}"


@dataclass(frozen=True)
class GradientClipping(_Clipping, Altering):
    """Scales the whole gradient down to ``norm`` where it is longer.

    The direction stays, so an attack on directions sees no difference; a reader who compares
    lengths clips its candidates' gradients too.
    """

    name = "Clipping"

    @property
    def error_bound(self) -> ReleaseDefense:
        """Clipping is in ``expected``: the bounds take its slopes from there."""
        return ReleaseDefense()

    def sent(
        self, gradient: Tensor, sizes: Sequence[int], *, generator: Generator, memory: ClientMemory
    ) -> Tensor:
        """Send the clipped gradient."""
        return self.expected(gradient, sizes)

    def expected(self, gradient: Tensor, sizes: Sequence[int]) -> Tensor:
        """Clip a candidate's gradient in the same way."""
        return gradient * clipping_factors(torch.linalg.vector_norm(gradient), self.norm)

    def carried(self, earlier: Reading, released: Tensor) -> Reading:
        """Noise is scaled down by an unknown factor: at least to what the norm allows."""
        most = self.norm / max(len(released), 1) ** 0.5
        smaller = torch.as_tensor(earlier.deviation).clamp(max=most)
        deviation = float(smaller) if smaller.dim() == 0 else smaller
        return mark_uncertain(replace(earlier, deviation=deviation))


@dataclass(frozen=True)
class RecordClipping(_Clipping):
    """Clips the gradient of every record to ``norm`` before they are added; no noise.

    The first half of DP-SGD (Abadi et al. 2016). The network runs in eval mode, because batch norm
    would mix records. Attackers clip each candidate's gradient too.
    """

    name = "Clipping of records"

    def __call__(self, victim: Victim) -> Victim:
        """Return the victim that clips every record."""
        return clipping(victim, ClippedNoise(self.norm, 0.0))


def clipping(victim: Victim, private: ClippedNoise) -> Victim:
    """The victim with clipping of records and noise, or a sentence why it cannot have them."""

    def change(inner: Any) -> Victim:
        if not hasattr(inner, "private"):
            raise BadInput(
                f"{type(inner).__name__} has no clipping of records: use SharedGradient, "
                "FederatedUpdate or ReleasedNetwork."
            )
        if inner.private is not None:
            raise BadInput("The victim clips its records already: give the defence once.")
        return replace(inner, private=private)

    return rebuild(victim, change)
