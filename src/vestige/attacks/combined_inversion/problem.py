"""One observation under the combined attack: the terms of its objective, and its minimisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vestige.attacks.combined_inversion.descent import (
    Minimum,
    Take,
    minimize_by_adam,
    minimize_by_lbfgs,
)
from vestige.attacks.combined_inversion.feature_terms import FeatureTerm, RecoveredFeatures
from vestige.attacks.combined_inversion.film import Film
from vestige.attacks.combined_inversion.images import Generated, Pixels, Whitened
from vestige.attacks.combined_inversion.recipes import Recipe, without_prior
from vestige.attacks.feature_inversion.body import Body
from vestige.attacks.gradient_matching.batch_norm import statistics_penalty
from vestige.attacks.gradient_matching.gradient_distances import (
    likelihood_distance,
    tensorwise_cosine,
)
from vestige.attacks.gradient_matching.matching import (
    Matching,
    batch_size_of,
    cosine_distance,
    cosine_distance_to,
    labels_of,
)
from vestige.attacks.gradient_matching.restarts import Stack
from vestige.attacks.gradient_matching.smoothness import smoothness_weight, total_variation
from vestige.interfaces import Observation, Public, Reconstruction
from vestige.records import ImageSpace

if TYPE_CHECKING:
    from vestige.attacks.combined_inversion.attack import CombinedInversion
    from vestige.priors.gaussian import GaussianPrior

# Inner tensors count this much before the joint cosine is taken, as in Inverting Gradients.
INNER_WEIGHT = 0.3
# Whitened coordinates start this far from the class mean, so that equal labels can part.
SPREAD = 0.1
WHITENED_RATE = 0.05
# Candidates leave the bounds by about this much at most, as the Gaussian knows no bounds.
OVERSHOOT = 0.05
# A start that the prior gave is left by this share of the learning rate.
WARM = 0.1
# A distance of gradients at which nothing is left to explain.
EXPLAINED = 1e-7


class Problem:
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
        self.spent, self.ended = 0, False

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """Those that can be followed here."""
        noisy, attack = self.matching.noise_share > 0, self.attack
        recipes = attack.noisy_recipes if noisy else attack.recipes
        if self.prior is None:
            recipes = tuple(filter(None, map(without_prior, recipes)))
        return recipes or (Recipe(),)

    def reconstruction(
        self, recipe: Recipe, generator: torch.Generator, remark: str = ""
    ) -> Reconstruction:
        """Candidates by a recipe, with what a reader may want to know."""
        matching = self.matching
        result, info = self.inverted(recipe, generator)
        remaining, _ = cosine_distance(self._simulate(result.x)[None].detach(), matching.observed)
        explained = 1 - float(remaining)
        info |= {"labels": self.origin, "recipe": str(recipe)}
        if result.stopped:
            info["interrupted"] = True
        if self.ended:
            unexplained = "other recipes were left out at the end of its budget"
            remark = f"{remark}; {unexplained}" if remark else unexplained
        finite = math.isfinite(result.objective)
        return Reconstruction(
            result.x,
            self.labels,
            torch.full((self.size,), max(0.0, explained) if finite else 0.0),
            float(remaining) if finite else None,
            not finite,
            info,
            remark,
        )

    def inverted(
        self, recipe: Recipe, generator: torch.Generator
    ) -> tuple[Minimum, dict[str, str | int | float | bool]]:
        """Best candidates of a recipe and those to follow where it does not explain the release."""
        iterations = self.attack.iterations
        film = Film.of_chain(iterations, len(recipe.chain))
        best, info = self._followed(recipe, generator, None, film)
        least = self._remaining(recipe, best)
        least = math.inf if math.isnan(least) else least
        for other in recipe.chain[1:]:
            if least <= EXPLAINED or best.stopped:
                break
            if self.spent + iterations > self.attack.most_iterations:
                self.ended = True
                break
            own = film.followed(iterations, warm=other.warm)
            result, facts = self._followed(other, generator, best if other.warm else None, own)
            remaining = self._remaining(other, result)
            best.stopped = result.stopped
            if remaining < least:
                best, info, least, film = result, facts, remaining, own
        film.show()
        return best, info

    def _remaining(self, recipe: Recipe, result: Minimum) -> float:
        """Distance of gradients that a recipe leaves, with its prior's share if it refines."""
        if recipe.refinement:
            return result.objective
        values, _ = self._distance()(self._simulate(result.x)[None].detach())
        return float(values[0])

    def _followed(
        self, recipe: Recipe, generator: torch.Generator, start: Minimum | None, film: Film
    ) -> tuple[Minimum, dict[str, str | int | float | bool]]:
        """Candidates by one recipe, from ``start`` on if any."""
        iterations = self.attack.iterations
        self.spent += iterations
        first = round(recipe.prior_share * iterations)
        left = iterations - first
        if first:
            start = self._most_probable(recipe.prior_weight, generator, first, film)
            if not left or start.stopped:
                return start, {}
        refining = min(left, round(recipe.refinement * iterations))
        polishing = min(left - refining, round(recipe.polish * iterations))
        matching = left - refining - polishing
        phases = (first, matching, polishing)
        start, info = self._matched(start, phases, generator, recipe.features, film)
        if refining and not start.stopped:
            start = self._refined(start, recipe.prior_weight, refining, film)
        return start, info

    def _most_probable(
        self, weight: float, generator: torch.Generator, steps: int, film: Film
    ) -> Minimum:
        """Records of least likelihood_distance + weight·½‖z‖², from near the class mean."""
        prior, matching, space = self.prior, self.matching, self.public.space
        assert prior is not None
        mean = prior.mean(self.labels)
        prior_distance = self._prior_distance(weight)
        start = SPREAD * torch.randn((self.size, *space.shape), generator=generator)
        result = minimize_by_adam(
            Whitened(prior, self.labels, start.to(matching.like), space),
            Stack(
                self._simulate,
                likelihood_distance(matching),
                lambda x: prior_distance(x, prior.whitened(x.flatten(1) - mean)),
            ),
            steps,
            learning_rate=WHITENED_RATE,
            schedule="cosine",
            take=self._within_bounds(film.after(0)),
        )
        result.x = matching.clipped(result.x)
        return result

    def _refined(self, start: Minimum, weight: float, steps: int, film: Film) -> Minimum:
        """The same objective from candidates on, by L-BFGS in whitened coordinates."""
        prior, matching, shape = self.prior, self.matching, start.x.shape
        assert prior is not None
        mean = prior.mean(self.labels)
        prior_distance = self._prior_distance(weight)

        def drawn(z: Tensor) -> Tensor:
            return (mean + prior.rooted(z)).reshape(shape)

        stack = Stack(
            lambda z, *, functional=False: self._simulate(drawn(z), functional=functional),
            likelihood_distance(matching),
            lambda z: prior_distance(drawn(z), z),
        )
        take = self._within_bounds(film.after(self.attack.iterations - steps), drawn)
        z = minimize_by_lbfgs(stack, prior.whitened(start.x.flatten(1) - mean), steps, take)
        x = matching.clipped(drawn(z))
        values, _ = stack(prior.whitened(x.flatten(1) - mean)[None])
        return Minimum(x, float(values[0]))

    def _prior_distance(self, weight: float) -> Callable[[Tensor, Tensor], Tensor]:
        """weight·½‖z‖² of candidates x with whitened coordinates z, and more outside the bounds."""
        matching, share = self.matching, self.matching.noise_share
        weight = weight * share if share > 0 else weight

        def distance(x: Tensor, z: Tensor) -> Tensor:
            outside = (x - matching.clipped(x)) / OVERSHOOT
            return weight / 2 * (z.square().sum() + outside.square().sum())

        return distance

    def _matched(
        self,
        start: Minimum | None,
        phases: tuple[int, int, int],
        generator: torch.Generator,
        with_features: bool,
        film: Film,
    ) -> tuple[Minimum, dict[str, str | int | float | bool]]:
        """Records of least published objective, from a start or from uniform draws.

        ``phases`` are the iterations before, those of Adam and those of the polish.
        """
        before, steps, polishing = phases
        attack, matching, space = self.attack, self.matching, self.public.space
        info: dict[str, str | int | float | bool] = {}
        warm = False
        if attack.image_prior == "deep":
            images = Generated(self.size, space, matching.like, generator)
        elif start is not None:
            images, warm = Pixels(start.x, space.bounds), True
        else:
            start_images = matching.drawn((self.size, *space.shape), "uniform", generator)
            images = Pixels(start_images, space.bounds)
        features = self._feature_term(generator, info) if with_features else None
        distance = self._distance()
        stack = Stack(self._simulate, distance, self._penalty(features))
        result = minimize_by_adam(
            images,
            stack,
            steps,
            learning_rate=attack.learning_rate * (WARM if warm else 1.0),
            signed=attack.signed,
            refresh=None if features is None else features.assign,
            refresh_every=attack.refresh_every,
            take=film.after(before),
        )
        if polishing and not result.stopped:
            bare = Stack(self._simulate, distance, self._weighed_features(features))
            take = self._within_bounds(film.after(before + steps))
            x = matching.clipped(minimize_by_lbfgs(bare, result.x, polishing, take))
            values, _ = stack(x[None])
            result.keep(x, float(values[0]))
        return result, info

    def _within_bounds(self, take: Take, drawn: Callable[[Tensor], Tensor] = lambda x: x) -> Take:
        """``take`` for points outside the bounds, which a phase returns as they are ``drawn``."""
        return lambda step, points: take(step, lambda: self.matching.clipped(drawn(points())))

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
        features = self._recovered
        info["features"] = 0 if features is None else len(features.values)
        if features is None:
            return None
        info["features trusted"] = round(float(features.trust.mean()), 3)
        body = Body(self.public.simulator, features.layer)
        return FeatureTerm(features, body, self.labels, self.matching.like, self.attack.span_from)

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
            statistics = statistics_penalty(
                self.public.simulator, matching.release.buffers, self.targets
            )
            if statistics is not None:
                terms.append((attack.batch_norm_weight, statistics))
        if features is not None:
            terms.append((attack.feature_weight, features))
        terms = [(weight, term) for weight, term in terms if weight]
        return partial(_summed, terms) if terms else None


def _summed(terms: list[tuple[float, Callable[[Tensor], Tensor]]], x: Tensor) -> Tensor:
    return torch.stack([weight * term(x) for weight, term in terms]).sum()
