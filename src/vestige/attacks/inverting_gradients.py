"""Inverting gradients: match the direction of the gradient by signed Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vestige import progress
from vestige.attacks.lbfgs import BatchedLBFGS
from vestige.attacks.matching import Matching, batch_size_of, cosine_distance, labels_of
from vestige.attacks.restarts import Stack
from vestige.errors import BadInput
from vestige.observations import (
    GradientRelease,
    Observation,
    Public,
    Reconstruction,
    Reconstructor,
    Release,
    UpdateRelease,
)
from vestige.records import ImageSpace

REPORT_EVERY = 10


@dataclass(frozen=True)
class InvertingGradients:
    """Geiping et al. 2020, "Inverting Gradients", Eq. 4 and Section 4."""

    iterations: int = 600
    restarts: int = 1
    learning_rate: float = 0.1
    total_variation: float = 1e-4
    signed: bool = True
    polish: float = 0.5
    batch_norm_weight: float = 0.0
    initialization: Literal["normal", "uniform"] = "uniform"

    name: ClassVar[str] = "Inverting Gradients"
    summary: ClassVar[str] = "matches the gradient's direction by signed Adam, then L-BFGS"
    needs: ClassVar[str] = "the model and the batch size"
    cites: ClassVar[str] = (
        "Geiping, Bauermeister, Dröge, Moeller 2020, Inverting Gradients: How easy is it to break "
        "privacy in federated learning?, Eq. 4"
    )
    reads: ClassVar[tuple[type[Release], ...]] = (GradientRelease, UpdateRelease)

    def __post_init__(self) -> None:
        if min(self.iterations, self.restarts) < 1:
            raise BadInput("Inverting Gradients needs at least one iteration and one restart.")

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Return the reconstructor; it needs no training."""
        return lambda observation, generator: self._invert(public, observation, generator)

    def _invert(
        self, public: Public, observation: Observation, generator: torch.Generator
    ) -> Reconstruction:
        matching = Matching(public, observation.release)
        size, shape = batch_size_of(observation), public.space.shape
        labels, origin = labels_of(public, observation)
        targets = matching.targets(labels)
        smooth = self.total_variation if isinstance(public.space, ImageSpace) else 0.0

        def distance(x: Tensor) -> Tensor:
            return cosine_distance(matching.simulated(x, targets), matching.observed)

        def objective(x: Tensor) -> Tensor:
            return distance(x) + smooth * total_variation(x) if smooth else distance(x)

        stack = Stack(objective)
        x = matching.drawn((self.restarts, size, *shape), self.initialization, generator)
        adam_steps = self.iterations - int(self.polish * self.iterations)
        first, second = torch.zeros_like(x), torch.zeros_like(x)
        best_x, best = x.clone(), torch.full((self.restarts,), float("inf")).to(x)
        interrupted = False
        for step in range(adam_steps):
            values, (slope,) = stack(x)
            better = values < best
            best = torch.where(better, values, best)
            best_x = torch.where(better.reshape(-1, *[1] * (x.dim() - 1)), x, best_x)
            if self.signed:
                slope = slope.sign()
            rate = self.learning_rate * 0.1 ** sum(step >= adam_steps * k / 8 for k in (3, 5, 7))
            first.lerp_(slope, 0.1)
            second.lerp_(slope.square(), 0.001)
            scale = (second / (1 - 0.999 ** (step + 1))).sqrt_().add_(1e-8)
            x = matching.clipped(x - rate / (1 - 0.9 ** (step + 1)) * first / scale)
            if step % REPORT_EVERY == 0 and progress.report(
                step + 1, self.iterations, float(best.min())
            ):
                interrupted = True
                break
        polish = Stack(distance)

        def evaluate(points: Tensor) -> tuple[Tensor, Tensor]:
            v, (g,) = polish(points.reshape(best_x.shape))
            return v, g.flatten(1)

        if adam_steps < self.iterations and not interrupted:
            search = BatchedLBFGS(evaluate, best_x.flatten(1))
            for step in range(adam_steps, self.iterations):
                search.step()
                if step % REPORT_EVERY == 0 and progress.report(
                    step + 1, self.iterations, float(search.values.min())
                ):
                    interrupted = True
                    break
            best, best_x = search.values, search.points.to(x).reshape(x.shape)
        chosen = int(best.nan_to_num(float("inf")).argmin())
        value = float(best[chosen])
        info: dict[str, str | int | float | bool] = {"labels": origin, "restarts": self.restarts}
        if not stack.vectorized:
            info["restarts run"] = "one after another: vmap cannot handle this model"
        if interrupted:
            info["interrupted"] = True
        return Reconstruction(
            matching.clipped(best_x[chosen]),
            labels,
            torch.full((size,), max(0.0, 1 - value)),
            value,
            not value < 1,
            info,
        )


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels of images (…, height, width)."""
    across = (x[..., 1:] - x[..., :-1]).abs().mean()
    down = (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
    return across + down
