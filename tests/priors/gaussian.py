"""A prior whose posterior is known in closed form: independent pixels, one mean, one deviation."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from vestige.priors import NoiseSchedule


@dataclass(frozen=True, eq=False)
class GaussianPrior:
    """Images x₀ ~ N(mean, deviation²) in the prior's units [−1, 1]."""

    mean: float = 0.1
    deviation: float = 0.2
    shape: tuple[int, ...] = (1, 8, 8)
    schedule: NoiseSchedule = field(default_factory=NoiseSchedule.linear)

    def noise(self, noisy: Tensor, time: Tensor) -> Tensor:
        """E[ε | x_t]: how far x_t is from its mean, in units of its total deviation."""
        signal, spread = (
            w.to(noisy.dtype)[:, None, None, None] for w in self.schedule.weights(time)
        )
        total = signal**2 * self.deviation**2 + spread**2
        return spread * (noisy - signal * self.mean) / total

    def expected(self, noisy: Tensor, time: Tensor) -> Tensor:
        signal, spread = (
            w.to(noisy.dtype)[:, None, None, None] for w in self.schedule.weights(time)
        )
        return (noisy - spread * self.noise(noisy, time)) / signal

    def posterior_mean(self, noisy: Tensor, deviation: Tensor) -> Tensor:
        """The textbook formula, in pixels of [0, 1]."""
        mean, variance = (self.mean + 1) / 2, (self.deviation / 2) ** 2
        noise = deviation[:, None, None, None].square()
        return (variance * noisy + noise * mean) / (variance + noise)

    def draws(self, count: int, generator) -> Tensor:
        """Images in [0, 1] units (the few beyond it stay as they are)."""
        import torch

        z = torch.randn((count, *self.shape), generator=generator, dtype=torch.float64)
        return (self.mean + self.deviation * z + 1) / 2
