"""The noise schedule of a diffusion model, read as noise deviations and inverted.

A diffusion model knows images x₀ in [−1, 1] and their noisy forms x_t = √ᾱ_t·x₀ + √(1 − ᾱ_t)·ε
(Ho et al. 2020). Divided by √ᾱ_t such an image is x₀ plus noise of deviation σ_t = √(1/ᾱ_t − 1)
(Schwethelm et al. 2025, section 3.2), which is how noise of any origin is matched to a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from vestige.choices import check_fields
from vestige.errors import BadInput


@dataclass(frozen=True, eq=False)
class NoiseSchedule:
    """ᾱ of the times 0 … T−1, falling; times between them interpolate log σ linearly.

    Everything is answered in float64 on the CPU: not every device has float64.
    """

    signal: Tensor

    def __post_init__(self) -> None:
        check_fields(self)
        signal = self.signal
        if signal.dim() != 1 or len(signal) < 2:
            raise BadInput("A noise schedule needs ᾱ at two times at least: give a vector.")
        inside = ((signal > 0) & (signal < 1)).all()
        if not (inside and (signal.diff() < 0).all()):
            raise BadInput(
                "A noise schedule's ᾱ must fall from time to time and stay between 0 and 1: check "
                "the betas of the scheduler."
            )

    @classmethod
    def linear(cls, steps: int = 1000, first: float = 1e-4, last: float = 0.02) -> NoiseSchedule:
        """Betas that rise linearly (Ho et al. 2020): σ from 0.01 to 157."""
        betas = torch.linspace(first, last, steps, dtype=torch.float64)
        return cls(torch.cumprod(1 - betas, 0))

    def __len__(self) -> int:
        return len(self.signal)

    @cached_property
    def deviations(self) -> Tensor:
        """σ_t = √(1/ᾱ_t − 1) of every time (T,), in float64."""
        return (1 / self.signal.double() - 1).sqrt()

    @property
    def smallest(self) -> float:
        """σ of time 0."""
        return float(self.deviations[0])

    @property
    def largest(self) -> float:
        """σ of the last time."""
        return float(self.deviations[-1])

    def time(self, deviation: Tensor) -> Tensor:
        """Fractional time (n,) at which the noise deviation is the given one (n,).

        Algorithm 1 of Schwethelm et al. takes the next whole time (``whole_time``), which
        overstates the noise by up to half at the start of the schedule, where σ is smallest. Less
        noise than time 0 has is taken for time 0.
        """
        wanted = deviation.detach().cpu().double().clamp(self.smallest, self.largest).log()
        known = self.deviations.log()
        upper = torch.searchsorted(known, wanted).clamp(1, len(self) - 1)
        low, high = known[upper - 1], known[upper]
        return upper - 1 + (wanted - low) / (high - low)

    def whole_time(self, deviation: Tensor) -> Tensor:
        """Smallest whole time with more noise than given, as Algorithm 1 of the paper has it."""
        wanted = deviation.detach().cpu().double()
        times = torch.searchsorted(self.deviations, wanted, right=True)
        return times.clamp(max=len(self) - 1).double()

    def deviation(self, time: Tensor) -> Tensor:
        """σ (n,) at fractional times (n,), in float64."""
        at = time.detach().cpu().double().clamp(0, len(self) - 1)
        known = self.deviations.log()
        lower = at.floor().long().clamp(max=len(self) - 2)
        part = at - lower
        return (known[lower] * (1 - part) + known[lower + 1] * part).exp()

    def weights(self, time: Tensor) -> tuple[Tensor, Tensor]:
        """√ᾱ and √(1 − ᾱ) (n,) at fractional times (n,), in float64."""
        sigma = self.deviation(time)
        root = (1 + sigma.square()).sqrt()
        return 1 / root, sigma / root
