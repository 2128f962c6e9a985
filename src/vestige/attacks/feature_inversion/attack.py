"""Feature inversion: exact features from the fully connected part, then pictures from features."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from vestige import progress
from vestige.attacks.exact_inversion.noise import Noise, check_noise
from vestige.attacks.exact_inversion.search_budget import limited_search
from vestige.attacks.feature_inversion.body import Body
from vestige.attacks.feature_inversion.decoder import Decoder
from vestige.attacks.feature_inversion.deconvolution import deconvolve
from vestige.attacks.feature_inversion.feature_recovery import (
    Head,
    find_head,
    recover_features,
)
from vestige.attacks.feature_inversion.pattern_equations import solve_patterns
from vestige.attacks.feature_inversion.problem import InversionProblem
from vestige.attacks.gradient_matching.matching import (
    Matching,
    check_single_step,
    cosine_distance,
    hinted_batch_size,
)
from vestige.attacks.gradient_matching.restarts import Stack
from vestige.attacks.gradient_matching.smoothness import total_variation
from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.interfaces import (
    GradientRelease,
    Observation,
    Public,
    Reconstruction,
    Reconstructor,
    UpdateRelease,
)
from vestige.records import ImageSpace

REPORT_EVERY = 10
# How much heavier total variation is in the first half of the rounds of deconvolution.
SMOOTH_FIRST = 10.0
OUT_OF_BUDGET = (
    "the search for features ended at its budget before all records were certified; a larger "
    "search_budget may find more"
)
# Kingma and Ba 2015, with a second moment that forgets within the few hundred steps taken here.
FIRST_MOMENT, SECOND_MOMENT = 0.9, 0.99


@dataclass(frozen=True)
class FeatureInversion:
    """Pan et al. 2020, Section 4: the two-stage attack on convolutional networks f = g ∘ h.

    Stage one recovers the features F̂ that enter the fully connected part g from its own gradient,
    with labels and a certificate for each record. Stage two, ``method="hybrid"``, minimises, for
    candidates x_m each paired with its own F̂_m,

        distance of gradients + feature_weight · mean_m ‖h(x_m) − F̂_m‖² / ‖F̂_m‖²

    with the paper's distance: the cosine for each tensor, averaged. ``method="deconvolution"`` runs
    h backwards with its own filters in one pass (``deconvolution``), then solves ``rounds`` times
    the linear equations that the activation patterns of the last solution give
    (``pattern_equations``).

    Where we deviate, and why:

    - Features come from the lift and from sampling (``feature_recovery``) rather than from
      exclusive neurons, which batches of eight rarely have.
    - The feature term is squared and relative, with weight 5 where the paper has 0.01·L1: exact
      features are worth more than a gradient that jumps wherever a ReLU or a maximum switches.
    - Given F̂ and labels the loss's slopes at the features are known exactly. The gradient of h is
      computed with these, so the head is neither run nor differentiated. Records without a
      usable feature switch this off: then the whole gradient is matched, as in the paper.
    - ``prior_weight`` > 0 starts from a linear guess fitted to records of the prior and penalises
      the distance from it, in units of that guess's error (``decoder``). 0 is the paper: no prior.
      Then the first restart begins at the deconvolution, if h is a chain, others at random.
    - Total variation is not in the paper; 0 takes it away. It starts ``smoothing`` times heavier
      and falls geometrically to its weight: patterns that are found in a smooth picture are right
      more often, and later steps hardly change them.

    A head of one linear layer follows Section 8.6. ``head`` names the fully connected layers, first
    to last, where they are not found. Confidence of a record is that of its features (above one
    half only where they are certified) times the share of them that the candidate explains.

    ``search_budget`` is how many directions the search for features examines closely before it goes
    on with what it has (``exact.sampling``), ``iterations`` bound stage two: counts, so that a run
    can be repeated. A search that ended early is remarked on.
    """

    iterations: int = 300
    restarts: int = 1
    learning_rate: float = 0.2
    feature_weight: float = 5.0
    total_variation: float = 0.1
    smoothing: float = 100.0
    prior_weight: float = 0.3
    prior_records: int = 4000
    signed: bool = True
    method: Literal["hybrid", "deconvolution"] = "hybrid"
    rounds: int = 8
    noise: Noise | None = None
    head: tuple[str, ...] | None = None
    search_budget: int = 5000

    name = "Feature inversion"
    summary = "solves for the features of the fully connected part, then for images"
    needs = "the model, with fully connected layers and ReLU at its end"
    cites = (
        "Pan et al. 2020, Exploring the Security Boundary of Data Reconstruction via Neuron "
        "Exclusivity Analysis, Section 4 and Appendix 8.6"
    )
    reads = (GradientRelease, UpdateRelease)

    def __post_init__(self) -> None:
        check_fields(
            self,
            counts=("iterations", "restarts", "prior_records", "search_budget"),
            positive=("learning_rate",),
            not_negative=("feature_weight", "total_variation", "prior_weight", "rounds"),
            least={"smoothing": 1},
        )
        if self.noise is not None:
            check_noise(self.noise)

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Find the fully connected part, and fit the decoder to records of the prior."""
        check_single_step(public, "features")
        head = find_head(public, self.head)
        body = Body(public.simulator, head.first)
        records, decoder = public.prior.records, None
        if self.prior_weight and self.method == "hybrid":
            order = torch.randperm(len(records), generator=generator)[: self.prior_records]
            decoder = Decoder.fitted(body, records[order], public.simulator.like)
        return lambda observation, generator: self._invert(
            public, head, body, decoder, observation, generator
        )

    def _invert(
        self,
        public: Public,
        head: Head,
        body: Body,
        decoder: Decoder | None,
        observation: Observation,
        generator: torch.Generator,
    ) -> Reconstruction:
        matching = Matching(public, observation.release)
        with limited_search(self.search_budget) as budget:
            result = recover_features(
                head, public, observation, noise=self.noise, generator=generator
            )
        if hinted_batch_size(observation.hints) is None:
            result = result.uncounted()
        else:
            result = result.contradicted(observation.hints)
        problem = InversionProblem(matching, head, body, result, observation)
        info: dict[str, str | int | float | bool] = {
            "features": len(result.inputs),
            "features certified": int(result.certified.sum()),
        }
        if result.reason:
            info["features in doubt"] = result.reason
        short = budget.ended and not bool(result.certified.all())
        diverged = False
        if self.method == "deconvolution":
            x = self._deconvolved(problem)
        else:
            x, objective = self._hybrid(problem, decoder, generator, info)
            diverged = not math.isfinite(objective)
        with torch.no_grad():
            misfit = problem.misfit(body(x)).clamp(0, 1)
        simulated = matching.simulated(x, problem.targets, functional=False).detach()
        remaining, _ = cosine_distance(simulated[None], matching.observed)
        confidence = (problem.certificate * (1 - misfit)).float().cpu()
        return Reconstruction(
            x,
            problem.labels,
            confidence,
            float(remaining),
            diverged,
            info,
            OUT_OF_BUDGET if short else "",
        )

    def _deconvolved(self, problem: InversionProblem) -> Tensor:
        """Candidates (batch, *shape) by transposed filters, then by their patterns' equations."""
        matching, space = problem.matching, problem.matching.public.space
        like = matching.public.prior.records.x[: self.prior_records].to(matching.like)
        x = matching.clipped(deconvolve(problem.body, problem.features.nan_to_num(0.0), like))
        wanted, weights = problem.equations(self.feature_weight)
        variation = self.total_variation if isinstance(space, ImageSpace) else 0.0
        # Patterns first settle in a smooth picture.
        for heavier, rounds in ((SMOOTH_FIRST, self.rounds // 2), (1.0, (self.rounds + 1) // 2)):
            x = solve_patterns(
                partial(problem.simulated, functional=False),
                wanted,
                weights,
                x,
                rounds=rounds,
                bounds=space.bounds,
                total_variation=heavier * variation,
            )
        return x

    def _hybrid(
        self,
        problem: InversionProblem,
        decoder: Decoder | None,
        generator: torch.Generator,
        info: dict[str, str | int | float | bool],
    ) -> tuple[Tensor, float]:
        """Candidates (batch, *shape) of the best restart, and its objective."""
        matching, size = problem.matching, len(problem.features)
        shape = (self.restarts, size, *matching.public.space.shape)
        if decoder is None:
            center, basis = matching.drawn(shape, "uniform", generator), None
            z = torch.zeros(shape).to(matching.like)
            try:
                center[0] = self._deconvolved(problem)
            except BadInput:
                info["start"] = "uniform: the body cannot be run backwards"
        else:
            center = decoder.guess(problem.features).to(matching.like).reshape(shape[1:])
            center = torch.where(
                problem.known(center), center, decoder.mean.to(center).reshape(shape[2:])
            )
            center, basis = center.expand(shape), decoder.basis.to(matching.like)
            # The first restart begins at the guess, others where it may be wrong.
            z = torch.randn(shape, generator=generator).to(matching.like)
            z[0] = 0

        def records(z: Tensor, center: Tensor) -> Tensor:
            moved = z if basis is None else (z.flatten(1) @ basis.T).reshape(z.shape)
            return center + moved

        def simulate(z: Tensor, center: Tensor, *, functional: bool) -> Tensor:
            x = matching.clipped(records(z, center))
            return problem.simulated(x, functional=functional)

        smoothed = isinstance(matching.public.space, ImageSpace) and self.total_variation > 0

        def penalty(heavier: float, z: Tensor, center: Tensor) -> Tensor:
            free = records(z, center)
            x = matching.clipped(free)
            # Outside the bounds clipping hides the slope: this one leads back.
            value = (free - x).square().mean()
            if smoothed:
                value = value + heavier * self.total_variation * total_variation(x)
            if basis is not None:
                value = value + self.prior_weight * z.square().mean()
            return value

        stack = Stack(simulate, problem.distance(self.feature_weight))
        first, second = torch.zeros_like(z), torch.zeros_like(z)
        objective = torch.full((self.restarts,), math.inf)

        def best_records() -> tuple[Tensor, float]:
            best = int(objective.nan_to_num(math.inf).argmin())
            return matching.clipped(records(z[best], center[best])).detach(), float(objective[best])

        due = progress.frames_due(self.iterations)
        for step in range(self.iterations + 1):
            done = step / self.iterations
            stack.penalty = partial(penalty, self.smoothing ** (1 - done))
            objective, (slope, _) = stack(z, center)
            if step in due:
                progress.show_frame(step, self.iterations, best_records()[0])
            reports = progress.has_listener() and step % REPORT_EVERY == 0
            if reports and progress.report(step, self.iterations, float(objective.min())):
                info["interrupted"] = True
                break
            if step == self.iterations:
                break
            if self.signed:
                slope = slope.sign()
            rate = self.learning_rate * (1 + math.cos(math.pi * done)) / 2
            first.lerp_(slope, 1 - FIRST_MOMENT)
            second.mul_(SECOND_MOMENT).addcmul_(slope, slope, value=1 - SECOND_MOMENT)
            scale = (second / (1 - SECOND_MOMENT ** (step + 1))).sqrt_().add_(1e-9)
            z = torch.addcdiv(z, first, scale, value=-rate / (1 - FIRST_MOMENT ** (step + 1)))
            if basis is None:
                z = matching.clipped(z + center) - center
        if not stack.vectorized:
            info["restarts run"] = "one after another: vmap cannot handle this model"
        return best_records()
