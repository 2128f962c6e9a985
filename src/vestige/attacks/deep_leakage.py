"""Deep leakage from gradients: match the gradient by L-BFGS."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vestige import progress
from vestige.attacks.gradient_matching.lbfgs import BatchedLBFGS
from vestige.attacks.gradient_matching.matching import (
    Matching,
    batch_size_of,
    labels_of,
    squared_distance,
)
from vestige.attacks.gradient_matching.restarts import Stack
from vestige.choices import check_fields
from vestige.interfaces import (
    GradientRelease,
    Observation,
    Public,
    Reconstruction,
    Reconstructor,
    UpdateRelease,
)

REPORT_EVERY = 10


@dataclass(frozen=True)
class DeepLeakage:
    """Zhu, Liu and Han 2019, "Deep Leakage from Gradients", Eq. 4 and Algorithm 1.

    Minimises the squared distance between the simulated and the released gradient over records
    and soft labels with L-BFGS. With ``exact_label`` the label of a batch of one is read off the
    last layer first (Zhao, Mopuri and Bilen 2020, "iDLG", Eq. 5); told labels are always used.

    Where we deviate: the distance is divided by the squared norm of the release, which moves no
    minimum and makes the first step as long for every network; steps obey the Wolfe conditions,
    where the authors' code takes every step whole and fails when it overshoots; an iteration is
    one evaluation of the gradient, where one of theirs is up to twenty. A restart that diverges
    (its objective is not finite, or a tenth of the iterations bring it no lower than its start)
    begins again from a fresh draw, at most ``fresh_draws`` times. Candidates are clipped to the
    bounds of their space at the end. Under noise of a known size the search ends where no more than
    the noise is left to explain (Morozov's discrepancy principle).

    Confidence is the share of the released gradient that the candidates explain: 1 − the relative
    squared distance, not below 0; one value for the whole batch.
    """

    iterations: int = 300
    restarts: int = 1
    exact_label: bool = True
    initialization: Literal["normal", "uniform"] = "uniform"
    history: int = 50
    fresh_draws: int = 3

    name = "Deep Leakage"
    summary = "matches the gradient by L-BFGS over records and soft labels"
    needs = "the model, the batch size and a twice differentiable network"
    cites = (
        "Zhu, Liu, Han 2019, Deep Leakage from Gradients, Eq. 4; "
        "Zhao, Mopuri, Bilen 2020, iDLG: Improved Deep Leakage from Gradients, Eq. 5"
    )
    reads = (GradientRelease, UpdateRelease)

    def __post_init__(self) -> None:
        counts = ("iterations", "restarts", "history")
        check_fields(self, counts=counts, not_negative=("fresh_draws",))

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Return the reconstructor; it needs no training."""
        return lambda observation, generator: self._invert(public, observation, generator)

    def _invert(
        self, public: Public, observation: Observation, generator: torch.Generator
    ) -> Reconstruction:
        size, shape, classes = batch_size_of(observation), public.space.shape, public.classes
        matching = Matching(public, observation.release, size)
        labels_known = observation.hints.labels is not None
        joint = not labels_known and not (size == 1 and self.exact_label)
        labels, origin = (None, "optimised") if joint else labels_of(public, observation)
        fixed = None if labels is None else matching.targets(labels)
        values = size * math.prod(shape)

        def parts(point: Tensor) -> tuple[Tensor, Tensor]:
            """Records and targets in one vector of variables."""
            x = point[:values].reshape(size, *shape)
            if fixed is not None:
                return x, fixed
            return x, torch.softmax(point[values:].reshape(size, classes), -1)

        def simulate(point: Tensor, *, functional: bool) -> Tensor:
            return matching.simulated(*parts(point), functional=functional)

        def draw() -> Tensor:
            x = matching.drawn((self.restarts, values), self.initialization, generator)
            if fixed is not None:
                return x
            logits = matching.drawn((self.restarts, size * classes), "normal", generator)
            return torch.cat([x, logits], 1)

        stack = Stack(simulate, lambda simulated: squared_distance(simulated, matching.observed))

        def evaluate(points: Tensor) -> tuple[Tensor, Tensor]:
            losses, (slopes,) = stack(points)
            return losses, slopes

        search = BatchedLBFGS(evaluate, draw(), history=self.history)
        start, draws = search.values, torch.zeros(self.restarts, dtype=torch.int64)
        age = torch.zeros(self.restarts, dtype=torch.int64)
        best_values, best_points = search.values, search.points
        patience, interrupted = max(self.iterations // 10, 1), False
        # The best fit explains one entry's noise with each of its values; half at most is granted.
        entries = len(matching.observed)
        noise_floor = matching.noise_share * max(entries - values, entries / 2)

        def diverged() -> Tensor:
            return ~search.values.isfinite() | ~(search.values < start)

        def best_restart() -> int:
            return int(best_values.nan_to_num(float("inf")).argmin())

        def records(point: Tensor) -> Tensor:
            return matching.clipped(parts(point.to(matching.like))[0].nan_to_num(0.0))

        due = progress.frames_due(self.iterations)
        for step in range(self.iterations):
            if step in due:
                progress.show_frame(step, self.iterations, records(best_points[best_restart()]))
            search.step()
            age += 1
            again = (diverged().cpu() & (age >= patience)) & (draws < self.fresh_draws)
            if bool(again.any()):
                which = again.to(search.points.device)
                search.replace(which, draw())
                start = torch.where(which, search.values, start)
                draws += again
                age[again] = 0
            better = search.values.nan_to_num(float("inf")) <= best_values.nan_to_num(float("inf"))
            best_values = torch.where(better, search.values, best_values)
            best_points = torch.where(better[:, None], search.points, best_points)
            if noise_floor and bool((best_values <= noise_floor).any()):
                break
            if step % REPORT_EVERY == 0 or step == self.iterations - 1:
                distance = float(best_values.nan_to_num(float("inf")).min())
                if progress.report(step + 1, self.iterations, distance):
                    interrupted = True
                    break
        best = best_restart()
        _, targets = parts(best_points[best].to(matching.like))
        value = float(best_values[best])
        explained = max(0.0, 1.0 - value) if value == value else 0.0
        info: dict[str, str | int | float | bool] = {
            "labels": origin,
            "restarts": self.restarts,
            "fresh draws after divergence": int(draws.sum()),
            "restarts that stayed divergent": int(diverged().sum()),
        }
        if not stack.vectorized:
            info["restarts run"] = "one after another: vmap cannot handle this model"
        if interrupted:
            info["interrupted"] = True
        return Reconstruction(
            records(best_points[best]),
            labels if labels is not None else targets.argmax(-1).cpu(),
            torch.full((size,), explained),
            value,
            bool(diverged().all()),
            info,
        )
