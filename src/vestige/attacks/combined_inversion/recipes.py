"""How the combined attack may divide its iterations between prior, matching and polish."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vestige.choices import check_fields
from vestige.errors import BadInput


@dataclass(frozen=True)
class Recipe:
    """First the most probable records, then the published objective from there on.

    ``prior_share`` of the iterations minimise likelihood + prior_weight·½‖z‖², z the whitened
    coordinates of the prior; the others match gradients and features, ``polish`` of all of them by
    L-BFGS, and a share of ``refinement`` returns to the first objective in the end.
    ``prior_share=1`` is the prior's estimate alone, 0 the published objective alone. Where the
    noise is known, ``prior_weight`` is in units of the one that Bayes' rule gives. Without
    ``features`` the matching leaves recovered features out: several sets of them can explain one
    head's gradient, and wrong ones hold candidates where the gradient would not.

    Where a recipe does not explain the release, ``otherwise`` is followed too, with as many
    iterations again, and what explains more is kept. A ``warm`` one starts from the best so far.
    """

    prior_weight: float = 0.0
    prior_share: float = 0.0
    polish: float = 0.15
    features: bool = True
    refinement: float = 0.0
    warm: bool = False
    otherwise: Recipe | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        shares = self.prior_share + self.refinement
        if min(self.prior_weight, self.prior_share, self.polish, self.refinement) < 0:
            raise BadInput("Weight and shares of a recipe are not below 0.")
        if self.prior_share < 1 and shares + self.polish > 1:
            raise BadInput("The shares of prior, polish and refinement add up to at most 1.")
        if shares > 1:
            raise BadInput(f"The share of the prior lies in 0 … 1, not at {shares:g}.")
        if shares > 0 and self.prior_weight == 0:
            raise BadInput("A recipe that uses the prior needs a positive weight for it.")
        if self.warm and self.prior_share:
            raise BadInput("A recipe starts from the prior or from what was found, not from both.")
        others = self.otherwise
        if others is not None and (others.refinement > 0) != (self.refinement > 0):
            raise BadInput("Of recipes in turn all refine or none: what they leave is compared.")

    @property
    def needs_prior(self) -> bool:
        """Whether it, or one that it names, follows the prior."""
        return self.prior_weight > 0 or (self.otherwise is not None and self.otherwise.needs_prior)

    def __str__(self) -> str:
        others = len(self.chain) - 1
        more = f", up to {others} more" if others else ""
        if not self.prior_share:
            features = "" if self.features else ", no features"
            prior = f", then prior {self.prior_weight:g}" if self.refinement else ""
            return f"matching, polish {self.polish:g}{features}{prior}{more}"
        then = "" if self.prior_share == 1 else f" for {self.prior_share:g} of the steps"
        return f"prior {self.prior_weight:g}{then}{more}"

    @property
    def chain(self) -> tuple[Recipe, ...]:
        """Itself and all that are followed where it does not explain the release."""
        return (self,) if self.otherwise is None else (self, *self.otherwise.chain)


def in_turn(*recipes: Recipe) -> Recipe:
    """The first of the recipes, with the others to follow where it does not explain the release."""
    first, *others = recipes
    if first.otherwise is not None:
        raise BadInput("Recipes in turn are single ones, without others to follow.")
    return replace(first, otherwise=in_turn(*others) if others else None)


def without_prior(recipe: Recipe) -> Recipe | None:
    """What is left of a recipe and those to follow where there is no prior; None if nothing is."""
    parts = [replace(part, otherwise=None) for part in recipe.chain if part.prior_weight == 0]
    return in_turn(*parts) if parts else None


# Without noise the equations are exact: what explains the release best is kept, and what matters
# is how many of them are left.
EXACT_RECIPES = (
    in_turn(
        Recipe(features=False),
        Recipe(polish=0.4, features=False),
        Recipe(1e-6, 0.3, 0.4, features=False),
        Recipe(polish=0.3, features=False, warm=True),
    ),
    Recipe(),
    Recipe(1e-6, 1.0),
    Recipe(1e-5, 1.0),
)
NOISY_RECIPES = (
    in_turn(Recipe(features=False), Recipe(polish=0.3, features=False, warm=True)),
    Recipe(1.0, 0.0, 0.0, features=False, refinement=0.4),
    Recipe(1.0, 1.0),
    Recipe(0.3, 1.0),
    Recipe(3.0, 1.0),
)
