"""The combined attack: gradient, features, smoothness and a prior, weighed for the defence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

import torch
from torch import Tensor

from vestige.attacks.batch_norm import statistics_penalty
from vestige.attacks.body import Body
from vestige.attacks.combined.descent import Found, descended, polished
from vestige.attacks.combined.feature_terms import (
    FeatureSource,
    FeatureTerm,
    RecoveredFeatures,
    solved_features,
    two_layer_features,
)
from vestige.attacks.combined.gaussian_prior import GaussianPrior
from vestige.attacks.combined.gradient_distances import likelihood_distance, tensorwise_cosine
from vestige.attacks.combined.images import Generated, Pixels, Whitened
from vestige.attacks.combined.recipes import EXACT_RECIPES, NOISY_RECIPES, Recipe
from vestige.attacks.combined.simulated_releases import simulated_observation
from vestige.attacks.inverting_gradients import smoothness_weight, total_variation
from vestige.attacks.matching import (
    Matching,
    batch_size_of,
    cosine_distance,
    cosine_distance_to,
    labels_of,
)
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
from vestige.records import ImageSpace, Records

# Inner tensors count this much before the joint cosine is taken, as in Inverting Gradients.
INNER_WEIGHT = 0.3
# Records that judge recipes are kept out of the prior's fit: a tenth of them, at most this many.
MOST_JUDGES = 256
# Whitened coordinates start this far from the class mean, so that equal labels can part.
SPREAD = 0.1
WHITENED_RATE = 0.05
# Candidates leave the bounds by about this much at most, as the Gaussian knows no bounds.
OVERSHOOT = 0.05
# A start that the prior gave is left by this share of the learning rate.
WARM = 0.1


@dataclass(frozen=True)
class CombinedInversion:
    """Liu, Wang, Chen and Lei 2025: gradient matching with every term that helps, then adapted.

    Minimises, for candidates x,

        distance of gradients + total_variation·TV + batch_norm_weight·statistics
            + feature_weight·R_feature

    by Adam. The paper's distance is the cosine of each tensor weighed by its number of entries
    (``gradient_distance="entries"``; "equal" weighs all the same, "joint" is the cosine of all
    tensors as one vector with inner ones weighed down). R_feature is 1 − cos² between last-but-one
    features of candidates and those recovered from the release, which ``feature_sources`` give,
    the first that finds any; pairs are made by present similarity (``FeatureTerm``).
    ``image_prior="deep"`` lets an untrained network draw the images. :meth:`published` has the
    paper's settings.

    Our own part is the adaptation. Where a defence leaves few equations, a prior is what remains:

    - Recipes divide the iterations between that objective and the most probable records under a
      Gaussian fitted to records of the prior (``GaussianPrior``), which minimise the likelihood's
      distance + weight·½‖z‖² in whitened coordinates z. Under known noise a weight of 1 is Bayes'
      rule, so infinite noise gives the class mean (``noisy_recipes``).
    - The attacker chooses among recipes by defending ``simulated_batches`` batches of its own
      records in the very same way and keeping the one with the least error on them. It does so
      once for each batch size. With 0 batches, noise or a mask makes it take the first that
      follows the prior to the end, and the first of all otherwise.
    - Under known noise the total variation weighs what the prior says it should.

    Confidence is the cosine between simulated and released gradient, not below 0.
    """

    iterations: int = 300
    learning_rate: float = 0.2
    gradient_distance: Literal["entries", "equal", "joint"] = "joint"
    total_variation: float = 1e-6
    batch_norm_weight: float = 0.001
    feature_weight: float = 0.1
    feature_sources: tuple[FeatureSource, ...] = (solved_features, two_layer_features)
    span_from: int = 9
    refresh_every: int = 10
    image_prior: Literal["pixels", "deep"] = "pixels"
    signed: bool = True
    recipes: tuple[Recipe, ...] = EXACT_RECIPES
    noisy_recipes: tuple[Recipe, ...] = NOISY_RECIPES
    prior_records: int = 4000
    simulated_batches: int = 3

    name = "Combined inversion"
    summary = "matches gradients and features under the prior that simulated defences recommend"
    needs = "the model and the batch size"
    cites = (
        "Liu, Wang, Chen, Lei 2025, gradient inversion with recovered features under defences; "
        "where we deviate is in the docstring"
    )
    reads = (GradientRelease, UpdateRelease)

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.learning_rate <= 0:
            raise BadInput("Combined inversion needs an iteration and a positive learning rate.")
        weights = (self.total_variation, self.batch_norm_weight, self.feature_weight)
        if min(weights) < 0:
            raise BadInput("Weights of total variation, batch norm and features are not below 0.")
        if not self.recipes or not self.noisy_recipes:
            raise BadInput("Give at least one recipe with noise and one without: Recipe() will do.")
        if self.gradient_distance not in ("entries", "equal", "joint"):
            raise BadInput(
                "The distance of gradients is 'entries', 'equal' or 'joint', not "
                f"{self.gradient_distance!r}."
            )
        if self.image_prior not in ("pixels", "deep"):
            raise BadInput(f"The image prior is 'pixels' or 'deep', not {self.image_prior!r}.")
        if min(self.span_from, self.refresh_every) < 1 or self.simulated_batches < 0:
            raise BadInput(
                "Pairs are refreshed and spans used from 1 on, and simulated batches are not < 0."
            )

    @classmethod
    def published(cls, image_prior: Literal["pixels", "deep"] = "pixels") -> Self:
        """The paper's objective, weights and schedule, without our prior; the rate is ours."""
        return cls(
            iterations=10_000,
            learning_rate=0.01,
            gradient_distance="entries",
            total_variation=0.01,
            batch_norm_weight=0.001,
            feature_weight=0.1,
            image_prior=image_prior,
            signed=False,
            recipes=(Recipe(polish=0.0),),
            noisy_recipes=(Recipe(polish=0.0),),
            simulated_batches=0,
        )

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Fit the prior; some of its records are kept apart to judge recipes."""
        like = next(iter(public.simulator.parameters.values()))
        records = public.prior.records
        order = torch.randperm(len(records), generator=generator)[: self.prior_records]
        judges = min(len(order) // 10, MOST_JUDGES) if self.simulated_batches else 0
        prior = None
        if any(recipe.prior_share for recipe in (*self.recipes, *self.noisy_recipes)):
            prior = GaussianPrior.fitted(records[order[judges:]].to(like.device), like)
        seed = int(torch.randint(2**62, (), generator=generator))
        chosen: dict[int, Recipe] = {}

        def reconstruct(observation: Observation, generator: torch.Generator) -> Reconstruction:
            problem = _Problem(self, public, observation, prior)
            if problem.size not in chosen:
                own = torch.Generator().manual_seed(seed)
                chosen[problem.size] = self._recipe(problem, records[order[:judges]], own)
            return problem.reconstruction(chosen[problem.size], generator)

        return reconstruct

    def _recipe(self, problem: _Problem, judges: Records, generator: torch.Generator) -> Recipe:
        """The recipe with the least error on simulated releases."""
        recipes, size = problem.recipes, problem.size
        usable = min(self.simulated_batches, len(judges) // size)
        if len(recipes) == 1 or not usable:
            altered = problem.matching.noise_share > 0 or problem.matching.kept is not None
            return next((r for r in recipes if altered and r.prior_share == 1), recipes[0])
        errors = torch.zeros(len(recipes))
        for batch in range(usable):
            records = judges[batch * size : (batch + 1) * size]
            seen = simulated_observation(problem.public, records, generator=generator)
            trial = _Problem(self, problem.public, seen, problem.prior)
            state = generator.get_state()
            for place, recipe in enumerate(recipes):
                generator.set_state(state)
                found, _ = trial.inverted(recipe, generator)
                errors[place] += _error(found.x.cpu(), records.x)
        return recipes[int(errors.nan_to_num(math.inf).argmin())]


class _Problem:
    """One observation and the terms of its objective."""

    def __init__(
        self,
        attack: CombinedInversion,
        public: Public,
        observation: Observation,
        prior: GaussianPrior | None,
    ) -> None:
        self.attack, self.public, self.observation = attack, public, observation
        self.prior, self.size = prior, batch_size_of(observation)
        self.matching = Matching(public, observation.release, self.size)
        self.labels, self.origin = labels_of(public, observation)
        self.targets = self.matching.targets(self.labels)
        self._recovered: RecoveredFeatures | None = None
        self._asked = False

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """Those that can be followed here."""
        noisy, attack = self.matching.noise_share > 0, self.attack
        recipes = attack.noisy_recipes if noisy else attack.recipes
        if self.prior is None:
            recipes = tuple(recipe for recipe in recipes if not recipe.prior_share)
        return recipes or (Recipe(),)

    def reconstruction(self, recipe: Recipe, generator: torch.Generator) -> Reconstruction:
        """Candidates by a recipe, with what a reader may want to know."""
        matching = self.matching
        found, info = self.inverted(recipe, generator)
        remaining, _ = cosine_distance(self._simulate(found.x)[None].detach(), matching.observed)
        explained = 1 - float(remaining)
        info |= {"labels": self.origin, "recipe": str(recipe)}
        if found.stopped:
            info["interrupted"] = True
        finite = math.isfinite(found.objective)
        return Reconstruction(
            found.x,
            self.labels,
            torch.full((self.size,), max(0.0, explained) if finite else 0.0),
            float(remaining) if finite else None,
            not finite,
            info,
        )

    def inverted(
        self, recipe: Recipe, generator: torch.Generator
    ) -> tuple[Found, dict[str, str | int | float | bool]]:
        """Best candidates by a recipe."""
        first = round(recipe.prior_share * self.attack.iterations)
        found = self._most_probable(recipe.prior_weight, generator, first) if first else None
        left = self.attack.iterations - first
        if found is not None and (not left or found.stopped):
            return found, {}
        polishing = min(left, round(recipe.polish * self.attack.iterations))
        return self._matched(found, left - polishing, polishing, generator, recipe.features)

    def _most_probable(self, weight: float, generator: torch.Generator, steps: int) -> Found:
        """Records of least likelihood_distance + weight·½‖z‖², from near the class mean."""
        prior, matching, space = self.prior, self.matching, self.public.space
        assert prior is not None
        share = matching.noise_share
        weight = weight * share if share > 0 else weight
        mean = prior.mean(self.labels)

        def penalty(x: Tensor) -> Tensor:
            z = prior.whitened(x.flatten(1) - mean)
            outside = (x - matching.clipped(x)) / OVERSHOOT
            return weight / 2 * (z.square().sum() + outside.square().sum())

        start = SPREAD * torch.randn((self.size, *space.shape), generator=generator)
        found = descended(
            Whitened(prior, self.labels, start.to(matching.like), space),
            Stack(self._simulate, likelihood_distance(matching), penalty),
            steps,
            learning_rate=WHITENED_RATE,
            schedule="cosine",
        )
        found.x = matching.clipped(found.x)
        return found

    def _matched(
        self,
        start: Found | None,
        steps: int,
        polishing: int,
        generator: torch.Generator,
        with_features: bool,
    ) -> tuple[Found, dict[str, str | int | float | bool]]:
        """Records of least published objective, from a start or from uniform draws."""
        attack, matching, space = self.attack, self.matching, self.public.space
        info: dict[str, str | int | float | bool] = {}
        features = self._feature_term(generator, info) if with_features else None
        distance = self._distance()
        stack = Stack(self._simulate, distance, self._penalty(features))
        if attack.image_prior == "deep":
            images = Generated(self.size, space, matching.like, generator)
        elif start is not None:
            images = Pixels(start.x, space.bounds)
        else:
            drawn = matching.drawn((self.size, *space.shape), "uniform", generator)
            images = Pixels(drawn, space.bounds)
        found = descended(
            images,
            stack,
            steps,
            learning_rate=attack.learning_rate * (1.0 if start is None else WARM),
            signed=attack.signed,
            refresh=None if features is None else features.assign,
            refresh_every=attack.refresh_every,
        )
        if polishing and not found.stopped:
            bare = Stack(self._simulate, distance, self._weighed_features(features))
            x = matching.clipped(polished(bare, found.x, polishing))
            values, _ = stack(x[None])
            found.keep(x, float(values[0]))
        return found, info

    def _simulate(self, x: Tensor, *, functional: bool = False) -> Tensor:
        return self.matching.simulated(x, self.targets, functional=functional)

    def _distance(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        kind, matching = self.attack.gradient_distance, self.matching
        if kind != "joint":
            return tensorwise_cosine(matching, kind)
        weights = matching.weights(1.0 if matching.noise_share > 0 else INNER_WEIGHT)
        to_observed = cosine_distance_to(matching.observed * weights)

        def distance(simulated: Tensor) -> tuple[Tensor, Tensor]:
            values, slopes = to_observed(simulated * weights)
            return values, slopes * weights

        return distance

    def _feature_term(
        self, generator: torch.Generator, info: dict[str, str | int | float | bool]
    ) -> FeatureTerm | None:
        if self.attack.feature_weight and not self._asked:
            # Recipes share what was recovered: it takes longer than many of them.
            self._asked = True
            seen = (self.public, self.observation, generator)
            sources = (source(*seen) for source in self.attack.feature_sources)
            trusted = (f for f in sources if f is not None and bool((f.trust > 0).any()))
            self._recovered = next(trusted, None)
        found = self._recovered
        info["features"] = 0 if found is None else len(found.values)
        if found is None:
            return None
        info["features trusted"] = round(float(found.trust.mean()), 3)
        body = Body(self.public.simulator, found.layer)
        return FeatureTerm(found, body, self.labels, self.matching.like, self.attack.span_from)

    def _weighed_features(self, features: FeatureTerm | None) -> Callable[[Tensor], Tensor] | None:
        weight = self.attack.feature_weight
        return None if features is None else lambda x: weight * features(x)

    def _penalty(self, features: FeatureTerm | None) -> Callable[[Tensor], Tensor] | None:
        """Weighted sum of total variation, batch-norm statistics and features."""
        attack, matching, terms = self.attack, self.matching, []
        if isinstance(self.public.space, ImageSpace):
            smoothness = attack.total_variation
            if matching.noise_share > 0:
                smoothness = max(smoothness, smoothness_weight(matching, self.size))
            terms.append((smoothness, total_variation))
        if attack.batch_norm_weight and matching.release.buffers:
            statistics = statistics_penalty(self.public.simulator, matching.release.buffers)
            if statistics is not None:
                terms.append((attack.batch_norm_weight, statistics))
        if features is not None:
            terms.append((attack.feature_weight, features))
        terms = [(weight, term) for weight, term in terms if weight]
        return partial(_summed, terms) if terms else None


def _summed(terms: list[tuple[float, Callable[[Tensor], Tensor]]], x: Tensor) -> Tensor:
    return torch.stack([weight * term(x) for weight, term in terms]).sum()


def _error(candidates: Tensor, records: Tensor) -> float:
    """Distance of simulated records from the candidates, each from its nearest, as a mean.

    Not squared: one batch that no recipe solves must not decide for those that one of them does.
    """
    distances = torch.cdist(records.flatten(1).double(), candidates.flatten(1).double())
    return float(distances.min(1).values.mean())
