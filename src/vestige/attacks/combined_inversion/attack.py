"""The combined attack: gradient, features, smoothness and a prior, weighed for the defence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from vestige import progress
from vestige.attacks.combined_inversion.feature_terms import (
    FeatureSource,
    solve_features,
    two_layer_features,
)
from vestige.attacks.combined_inversion.problem import Problem
from vestige.attacks.combined_inversion.recipes import EXACT_RECIPES, NOISY_RECIPES, Recipe
from vestige.attacks.gradient_matching.record_likelihoods import GaussianReconstructor
from vestige.attacks.gradient_matching.simulated_releases import simulate_observation
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
from vestige.priors.gaussian import GaussianPrior
from vestige.records import Records

# Records that judge recipes are kept out of the prior's fit: a tenth of them, at most this many.
MOST_JUDGES = 256
# Searches of all iterations that the first inversion may run, unless a budget is given: those of
# Inverting Gradients take twice as many iterations, so it costs about ten of them.
SEARCHES = 20


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
    - A search that got stuck shows where equations are exact: it leaves some of the release
      unexplained. Recipes follow each other until one explains it, each with all ``iterations``,
      and the best is kept.
    - The attacker chooses among recipes by defending ``simulated_batches`` batches of its own
      records in the very same way and keeping the one with the least error on them. It does so
      once for each batch size. With 0 batches, noise or a mask makes it take the first that
      follows the prior to the end, and the first of all otherwise.
    - ``budget`` is how many iterations the first inversion of a batch size may take altogether, the
      choice of a recipe included; None means 20 times ``iterations``. Recipes are compared on as
      many simulated batches as leave enough for the inversion itself, and other recipes follow
      only within it; whatever ended early is remarked on, and the best so far is returned. It is a
      count, so that a run can be repeated.
    - Under known noise the total variation weighs what the prior says it should.

    Confidence is the cosine between simulated and released gradient, not below 0.
    """

    iterations: int = 300
    learning_rate: float = 0.2
    gradient_distance: Literal["entries", "equal", "joint"] = "joint"
    total_variation: float = 1e-6
    batch_norm_weight: float = 0.001
    feature_weight: float = 0.1
    feature_sources: tuple[FeatureSource, ...] = (solve_features, two_layer_features)
    span_from: int = 9
    refresh_every: int = 10
    image_prior: Literal["pixels", "deep"] = "pixels"
    signed: bool = True
    recipes: tuple[Recipe, ...] = EXACT_RECIPES
    noisy_recipes: tuple[Recipe, ...] = NOISY_RECIPES
    prior_records: int = 4000
    simulated_batches: int = 3
    budget: int | None = None

    name = "Combined inversion"
    summary = "matches gradients and features under the prior that simulated defences recommend"
    needs = "the model and the batch size"
    cites = (
        "Liu, Wang, Chen, Lei 2025, gradient inversion with recovered features under defences; "
        "where we deviate is in the docstring"
    )
    reads = (GradientRelease, UpdateRelease)

    def __post_init__(self) -> None:
        check_fields(
            self,
            counts=("iterations", "prior_records", "budget", "span_from", "refresh_every"),
            positive=("learning_rate",),
            not_negative=(
                "total_variation",
                "batch_norm_weight",
                "feature_weight",
                "simulated_batches",
            ),
        )
        if not self.recipes or not self.noisy_recipes:
            raise BadInput("Give at least one recipe with noise and one without: Recipe() will do.")

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
        like = public.simulator.like
        records = public.prior.records
        order = torch.randperm(len(records), generator=generator)[: self.prior_records]
        judges = min(len(order) // 10, MOST_JUDGES) if self.simulated_batches else 0
        prior = None
        if any(recipe.needs_prior for recipe in (*self.recipes, *self.noisy_recipes)):
            prior = GaussianPrior.fitted(records[order[judges:]].to(like.device), like)
        seed = int(torch.randint(2**62, (), generator=generator))
        chosen: dict[int, tuple[Recipe, str]] = {}

        def reconstruct(observation: Observation, generator: torch.Generator) -> Reconstruction:
            problem = Problem(self, public, observation, prior)
            if problem.size not in chosen:
                own = torch.Generator().manual_seed(seed)
                chosen[problem.size] = self._recipe(problem, records[order[:judges]], own)
            recipe, compared = chosen[problem.size]
            return problem.reconstruction(recipe, generator, compared)

        return GaussianReconstructor(reconstruct, public)

    @property
    def most_iterations(self) -> int:
        """The budget of the first inversion."""
        return SEARCHES * self.iterations if self.budget is None else self.budget

    @property
    def longest_run(self) -> int:
        """Iterations of an inversion whose recipe is chosen, if all that follow it are needed."""
        chains = (len(recipe.chain) for recipe in (*self.recipes, *self.noisy_recipes))
        return self.iterations * max(chains)

    def _recipe(
        self, problem: Problem, judges: Records, generator: torch.Generator
    ) -> tuple[Recipe, str]:
        """The recipe with the least error on simulated releases, and what a reader should know."""
        recipes, size = problem.recipes, problem.size
        usable = min(self.simulated_batches, len(judges) // size)
        altered = problem.matching.noise_share > 0 or problem.matching.kept is not None
        otherwise = next((r for r in recipes if altered and r.prior_share == 1), recipes[0])
        if len(recipes) == 1 or not usable:
            return otherwise, ""
        errors = torch.zeros(len(recipes))
        chains = [len(recipe.chain) for recipe in recipes]
        # What is left for the inversion itself after the choice.
        left = self.most_iterations - max(chains) * self.iterations
        for batch in range(usable):
            if left < sum(chains) * self.iterations:
                reason = f"its recipe was chosen on {batch} of {usable} simulated batches, as many "
                reason += "as its budget allows"
                if not batch:
                    return otherwise, reason
                break
            records = judges[batch * size : (batch + 1) * size]
            seen = simulate_observation(problem.public, records, generator=generator)
            trial = Problem(self, problem.public, seen, problem.prior)
            state = generator.get_state()
            for place, recipe in enumerate(recipes):
                generator.set_state(state)
                with progress.not_recording():
                    result, _ = trial.inverted(recipe, generator)
                errors[place] += _error(result.x.cpu(), records.x)
            left -= trial.spent
        else:
            reason = ""
        return recipes[int(errors.nan_to_num(math.inf).argmin())], reason


def _error(candidates: Tensor, records: Tensor) -> float:
    """Distance of simulated records from the candidates, each from its nearest, as a mean.

    Not squared: one batch that no recipe solves must not decide for those that one of them does.
    """
    distances = torch.cdist(records.flatten(1).double(), candidates.flatten(1).double())
    return float(distances.min(1).values.mean())
