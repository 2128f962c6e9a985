"""Clipping: of a whole gradient, or of every record's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vestige.alterations import ClientMemory, Reading, blurred
from vestige.bounds.mechanisms import Mechanism, NonPrivate
from vestige.defenses.defended_victims import rebuilt
from vestige.defenses.defense import Altering
from vestige.errors import BadInput
from vestige.observations import Victim
from vestige.private_steps import ClippedNoise


@dataclass(frozen=True)
class GradientClipping(Altering):
    """Scales the whole gradient down to ``norm`` where it is longer.

    The direction stays, so an attack on directions sees no difference; a reader who compares
    lengths clips its candidates' gradients too.
    """

    norm: float

    name = "Clipping"

    def __post_init__(self) -> None:
        _check_norm(self.norm)

    @property
    def strength(self) -> float:
        """The norm: smaller is stronger."""
        return self.norm

    @property
    def setting(self) -> str:
        """The norm in words."""
        return f"norm {self.norm:g}"

    @property
    def why(self) -> str:
        """Why no guarantee comes with it."""
        return "clipping without noise hides nothing"

    def sent(
        self,
        gradient: Tensor,
        sizes: Sequence[int],
        *,
        generator: torch.Generator,
        memory: ClientMemory,
    ) -> Tensor:
        """Send the clipped gradient."""
        return self.expected(gradient, sizes)

    def expected(self, gradient: Tensor, sizes: Sequence[int]) -> Tensor:
        """Clip a candidate's gradient in the same way."""
        length = torch.linalg.vector_norm(gradient).clamp_min(1e-30)
        return gradient * (self.norm / length).clamp(max=1.0)

    def carried(self, earlier: Reading, released: Tensor) -> Reading:
        """Noise is scaled down too, by nobody knows how much: at least to what the norm allows."""
        most = self.norm / max(len(released), 1) ** 0.5
        smaller = torch.as_tensor(earlier.deviation).clamp(max=most)
        deviation = float(smaller) if smaller.dim() == 0 else smaller
        return blurred(replace(earlier, deviation=deviation))


@dataclass(frozen=True)
class RecordClipping:
    """Clips the gradient of every record to ``norm`` before they are added; no noise.

    The first half of DP-SGD (Abadi et al. 2016). The network runs in eval mode, because batch norm
    would mix records. Attackers clip each candidate's gradient too.
    """

    norm: float

    name = "Clipping of records"

    def __post_init__(self) -> None:
        _check_norm(self.norm)

    @property
    def strength(self) -> float:
        """The norm: smaller is stronger."""
        return self.norm

    @property
    def setting(self) -> str:
        """The norm in words."""
        return f"norm {self.norm:g}"

    @property
    def mechanism(self) -> Mechanism:
        """None."""
        return NonPrivate("clipping without noise hides nothing")

    def records(self, batch_size: int) -> int:
        """As many as the client holds."""
        return batch_size

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

    return rebuilt(victim, change)


def _check_norm(norm: float) -> None:
    if not 0 < norm < math.inf:
        raise BadInput(f"A clipping norm is positive and finite, not {norm!r}.")
