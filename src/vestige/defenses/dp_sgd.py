"""DP-SGD as a defence: every record's gradient clipped, and noise on their sum."""

from __future__ import annotations

from dataclasses import dataclass

from vestige.choices import check_fields
from vestige.defenses.altering import BaseDefense
from vestige.defenses.gradient_clipping import clipping
from vestige.errors import BadInput
from vestige.interfaces import Victim
from vestige.mechanisms import DPSGD, Mechanism
from vestige.simulation.dp_sgd import ClippedNoise


@dataclass(frozen=True)
class PrivateGradients(BaseDefense):
    """One step of DP-SGD in place of a gradient (Abadi et al. 2016, Algorithm 1).

    The noise has standard deviation ``noise_multiplier · clipping_norm`` on the sum over records.
    The stated mechanism is that of one release in which the record takes part; what a whole
    training costs follows from its sampling rate and steps (``vestige bounds``).
    """

    clipping_norm: float
    noise_multiplier: float

    name = "DP-SGD"

    def __post_init__(self) -> None:
        check_fields(self)
        ClippedNoise(self.clipping_norm, self.noise_multiplier)  # refuses what is out of range
        if self.noise_multiplier == 0:
            raise BadInput("DP-SGD needs noise: say RecordClipping(norm) for clipping alone.")

    @property
    def strength(self) -> float:
        """The noise multiplier."""
        return self.noise_multiplier

    @property
    def setting(self) -> str:
        """Clipping norm and noise multiplier in words."""
        return f"C {self.clipping_norm:g}, σ {self.noise_multiplier:g}"

    @property
    def mechanism(self) -> Mechanism:
        """One step with the record in it."""
        return DPSGD(
            self.noise_multiplier, sampling_rate=1.0, steps=1, clipping_norm=self.clipping_norm
        )

    def __call__(self, victim: Victim) -> Victim:
        """Return the victim that clips and adds noise."""
        return clipping(victim, ClippedNoise(self.clipping_norm, self.noise_multiplier))
