"""Feature inversion: exact features from the fully connected part, then pictures from features."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from vestige import progress
from vestige.attacks.body import Body
from vestige.attacks.decoder import Decoder
from vestige.attacks.deconvolution import deconvolved
from vestige.attacks.exact.layers import Recovered
from vestige.attacks.exact.noise import Noise
from vestige.attacks.feature_recovery import Head, found_head, recovered_features
from vestige.attacks.inverting_gradients import total_variation
from vestige.attacks.matching import Matching, batch_size_of, cosine_distance, labels_of
from vestige.attacks.pattern_equations import solved
from vestige.attacks.restarts import Stack
from vestige.errors import BadInput
from vestige.observations import (
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
      certified feature switch this off: then the whole gradient is matched, as in the paper.
    - ``prior_weight`` > 0 starts from a linear guess fitted to records of the prior and penalises
      the distance from it, in units of that guess's error (``decoder``). 0 is the paper: no prior.
      Then the first restart begins at the deconvolution, if h is a chain, others at random.
    - Total variation is not in the paper; 0 takes it away. It starts ``smoothing`` times heavier
      and falls geometrically to its weight: patterns that are found in a smooth picture are right
      more often, and later steps hardly change them.

    A head of one linear layer follows Section 8.6. ``head`` names the fully connected layers, first
    to last, where they are not found. Confidence of a record is its certificate times the share of
    its features that the candidate explains.
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

    name = "Feature inversion"
    summary = "solves for the features of the fully connected part, then for images"
    needs = "the model, with fully connected layers and ReLU at its end"
    cites = (
        "Pan et al. 2020, Exploring the Security Boundary of Data Reconstruction via Neuron "
        "Exclusivity Analysis, Section 4 and Appendix 8.6"
    )
    reads = (GradientRelease, UpdateRelease)

    def __post_init__(self) -> None:
        if min(self.iterations, self.restarts) < 1 or self.learning_rate <= 0:
            raise BadInput(
                "Feature inversion needs at least one iteration and one restart, and a positive "
                "learning rate."
            )
        if min(self.feature_weight, self.total_variation, self.prior_weight) < 0:
            raise BadInput("Weights of features, total variation and prior are not below 0.")
        if self.smoothing < 1 or self.rounds < 0:
            raise BadInput("Smoothing is 1 or more, and rounds are not below 0.")
        if self.method not in ("hybrid", "deconvolution"):
            raise BadInput(f"The method is 'hybrid' or 'deconvolution', not {self.method!r}.")

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Find the fully connected part, and fit the decoder to records of the prior."""
        local = public.simulator.local
        if local is not None and local.steps > 1:
            raise BadInput(
                f"An update of {local.steps} local steps is no single gradient, so no features can "
                "be read off it: try InvertingGradients, which unrolls the steps."
            )
        head = found_head(public, self.head)
        body = Body(public.simulator, head.first)
        records, decoder = public.prior.records, None
        if self.prior_weight and self.method == "hybrid":
            order = torch.randperm(len(records), generator=generator)[: self.prior_records]
            like = next(iter(public.simulator.parameters.values()))
            decoder = Decoder.fitted(body, records[order], like)
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
        found = recovered_features(head, public, observation, noise=self.noise, generator=generator)
        problem = _Problem(matching, head, body, found, observation)
        info: dict[str, str | int | float | bool] = {
            "features": len(found.inputs),
            "features certified": int(found.certified.sum()),
        }
        if found.reason:
            info["features in doubt"] = found.reason
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
        return Reconstruction(x, problem.labels, confidence, float(remaining), diverged, info)

    def _deconvolved(self, problem: _Problem) -> Tensor:
        """Candidates (batch, *shape) by transposed filters, then by their patterns' equations."""
        matching, space = problem.matching, problem.matching.public.space
        like = matching.public.prior.records.x[: self.prior_records].to(matching.like)
        x = matching.clipped(deconvolved(problem.body, problem.features.nan_to_num(0.0), like))
        wanted, weights = problem.equations(self.feature_weight)
        variation = self.total_variation if isinstance(space, ImageSpace) else 0.0
        # Patterns first settle in a smooth picture.
        for heavier, rounds in ((SMOOTH_FIRST, self.rounds // 2), (1.0, (self.rounds + 1) // 2)):
            x = solved(
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
        problem: _Problem,
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
        for step in range(self.iterations + 1):
            done = step / self.iterations
            stack.penalty = partial(penalty, self.smoothing ** (1 - done))
            objective, (slope, _) = stack(z, center)
            told = progress.watched() and step % REPORT_EVERY == 0
            if told and progress.report(step, self.iterations, float(objective.min())):
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
        best = int(objective.nan_to_num(math.inf).argmin())
        if not stack.vectorized:
            info["restarts run"] = "one after another: vmap cannot handle this model"
        return matching.clipped(records(z[best], center[best])).detach(), float(objective[best])


class _Problem:
    """One release with its recovered features (b, d), NaN where a record has none, and labels."""

    def __init__(
        self,
        matching: Matching,
        head: Head,
        body: Body,
        found: Recovered,
        observation: Observation,
    ) -> None:
        self.matching, self.body = matching, body
        whole = len(found.certified) > 0 and bool(found.certified.all())
        if whole:
            self.labels = found.labels
            features, certificate = found.inputs, found.certificate
        else:
            self.labels, features, certificate = _completed(matching, found, observation)
        self.targets = matching.targets(self.labels)
        self.features = features.to(matching.like)
        self.certificate = certificate.to(matching.like)
        like = matching.like
        probe = matching.public.prior.records.x[:2].to(like)
        used = set(body.used(probe))
        self.names = tuple(n for n in matching.names if n in used or not whole)
        self.cotangents = self._slopes(head) if whole else None
        places = _kept_places(matching)
        self.places = [places[n] for n in self.names]
        released = [matching.release.tensors[n].detach().to(like).flatten() for n in self.names]
        self.wanted = [one[place] for one, place in zip(released, self.places)]
        self.sizes = [one.numel() for one in self.wanted]

    def _slopes(self, head: Head) -> Tensor:
        """Slope of the loss at the features (b, d), as it entered the release."""
        simulator, release = self.matching.public.simulator, self.matching.release
        leaf = self.features.clone().requires_grad_()
        losses = simulator.loss(head.logits(simulator, leaf), self.targets)
        loss = losses.mean() if simulator.reduction == "mean" else losses.sum()
        (slope,) = torch.autograd.grad(loss, leaf)
        if isinstance(release, UpdateRelease) and simulator.local is not None:
            slope = -simulator.local.learning_rate * slope
        return slope

    def known(self, like: Tensor) -> Tensor:
        """Mask (b, 1, …) of the records whose features are known."""
        return self.features.isfinite().all(1).reshape(-1, *[1] * (like.dim() - 1))

    def misfit(self, features: Tensor) -> Tensor:
        """‖h(x) − F̂‖² / ‖F̂‖² for each record (…, b); zero where F̂ is unknown."""
        norm = self.features.square().sum(-1).clamp_min(1e-30)
        return ((features - self.features).square().sum(-1) / norm).nan_to_num(0.0)

    def simulated(self, x: Tensor, *, functional: bool) -> Tensor:
        """The tensors of the gradient that depend on h, then the features, as one vector."""
        if self.cotangents is None:
            released = self.matching.simulated(x, self.targets, functional=functional)
            return torch.cat([released, self.body(x).flatten()])
        tensors, features = self.body.gradient(
            x, self.cotangents, self.names, functional=functional
        )
        made = [tensors[n].flatten()[place] for n, place in zip(self.names, self.places)]
        return torch.cat([*made, features.flatten()])

    def equations(self, feature_weight: float) -> tuple[Tensor, Tensor]:
        """What ``simulated`` should return, and the weight of each entry in a squared misfit."""
        parts = [
            torch.full_like(
                one, 1 / math.sqrt(len(self.wanted) * float(one.square().sum() + 1e-30))
            )
            for one in self.wanted
        ]
        norm = self.features.square().sum(1, keepdim=True) * len(self.features) / feature_weight
        share = norm.clamp_min(1e-30).rsqrt().expand(self.features.shape).nan_to_num(0.0)
        wanted = torch.cat([*self.wanted, self.features.nan_to_num(0.0).flatten()])
        return wanted, torch.cat([*parts, share.flatten()])

    def distance(self, feature_weight: float) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Mean cosine distance of the tensors plus the weighted misfit of features, with slopes."""
        wanted = self.features.nan_to_num(0.0).flatten()
        known = self.features.isfinite().to(wanted)
        weight = known / self.features.square().sum(1, keepdim=True).clamp_min(1e-30)
        weight = (feature_weight / len(weight)) * weight.nan_to_num(0.0).flatten()

        def distance(vector: Tensor) -> tuple[Tensor, Tensor]:
            *tensors, features = vector.split([*self.sizes, wanted.numel()], 1)
            difference = features - wanted
            slopes = [2 * weight * difference]
            values = (weight * difference.square()).sum(1)
            for tensor, other in zip(reversed(tensors), reversed(self.wanted)):
                value, slope = cosine_distance(tensor, other)
                values = values + value / len(tensors)
                slopes.append(slope / len(tensors))
            return values, torch.cat(slopes[::-1], 1)

        return distance


def _kept_places(matching: Matching) -> dict[str, Tensor]:
    """For each released tensor the places of its entries that a mask left."""
    sizes = {name: matching.release.tensors[name].numel() for name in matching.names}
    if matching.kept is None:
        return {name: torch.arange(size) for name, size in sizes.items()}
    assert matching.reading.kept is not None
    split = matching.reading.kept.split(list(sizes.values()))
    return {name: torch.nonzero(kept).flatten() for name, kept in zip(sizes, split)}


def _completed(
    matching: Matching, found: Recovered, observation: Observation
) -> tuple[Tensor, Tensor, Tensor]:
    """Labels, features and certificates of a batch of which only a part was certified.

    Features come first; the other records have the labels that are left, and NaN for features.
    """
    labels, _ = labels_of(matching.public, observation)
    size, width = batch_size_of(observation), found.inputs.shape[-1]
    kept = found.certified.nonzero().flatten()[:size]
    left = labels.tolist()
    for label in found.labels[kept].tolist():
        left.remove(label if label in left else left[0])
    names = [*found.labels[kept].tolist(), *left]
    features = torch.full((size, width), torch.nan, dtype=torch.float64)
    features[: len(kept)] = found.inputs[kept]
    certificate = torch.zeros(size, dtype=torch.float64)
    certificate[: len(kept)] = found.certificate[kept]
    return torch.tensor(names), features, certificate
