"""How the combined attack may divide its iterations between prior, matching and polish."""

from __future__ import annotations

from dataclasses import dataclass

from vestige.errors import BadInput


@dataclass(frozen=True)
class Recipe:
    """First the most probable records, then the published objective from there on.

    ``prior_share`` of the iterations minimise likelihood + prior_weight·½‖z‖², z the whitened
    coordinates of the prior; the others match gradients and features, ``polish`` of all of them by
    L-BFGS. ``prior_share=1`` is the prior's estimate alone, 0 the published objective alone. Where
    the noise is known, ``prior_weight`` is in units of the one that Bayes' rule gives. Without
    ``features`` the matching leaves recovered features out: several sets of them can explain one
    head's gradient, and wrong ones hold candidates where the gradient would not.
    """

    prior_weight: float = 0.0
    prior_share: float = 0.0
    polish: float = 0.15
    features: bool = True

    def __post_init__(self) -> None:
        if min(self.prior_weight, self.prior_share, self.polish) < 0:
            raise BadInput("Weight and shares of a recipe are not below 0.")
        if self.prior_share < 1 and self.prior_share + self.polish > 1:
            raise BadInput("The shares of prior and polish add up to at most 1.")
        if self.prior_share > 1:
            raise BadInput(f"The share of the prior lies in 0 … 1, not at {self.prior_share}.")
        if self.prior_share > 0 and self.prior_weight == 0:
            raise BadInput("A recipe that uses the prior needs a positive weight for it.")

    def __str__(self) -> str:
        if not self.prior_share:
            features = "" if self.features else ", no features"
            return f"matching, polish {self.polish:g}{features}"
        then = "" if self.prior_share == 1 else f" for {self.prior_share:g} of the steps"
        return f"prior {self.prior_weight:g}{then}"


# Without noise the equations are exact, and what matters is how many of them are left.
EXACT_RECIPES = (
    Recipe(),
    Recipe(features=False),
    Recipe(polish=0.4, features=False),
    Recipe(1e-6, 0.3, 0.4, features=False),
    Recipe(1e-6, 1.0),
    Recipe(1e-5, 1.0),
)
NOISY_RECIPES = (Recipe(features=False), Recipe(1.0, 1.0), Recipe(0.3, 1.0), Recipe(3.0, 1.0))
