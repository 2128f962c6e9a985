"""What choosing among the private trainings of a comparison spends of the records trained on."""

from __future__ import annotations

from collections.abc import Sequence

from vestige.bounds.search.fixed_grid import any_of, fixed_search
from vestige.bounds.search.truncated_negative_binomial import (
    TruncatedNegativeBinomial,
    random_search,
)
from vestige.bounds.success.renyi_dp import epsilon_of_renyi
from vestige.errors import BadInput
from vestige.mechanisms import Mechanism
from vestige.reports.comparison import SearchCost

DELTA = 1e-5
"""δ at which the cost of choosing is stated."""


def search_cost(mechanisms: Sequence[Mechanism], repeats: int) -> SearchCost | None:
    """The ε of the weakest mechanism, of all trainings, and of a random search of the same size.

    Mechanisms are those that hold with a guarantee, one for each setting; every setting is trained
    ``repeats`` times. None where there is nothing to choose from; without figures where the Rényi
    divergences of a mechanism are not known.
    """
    trainings = len(mechanisms) * repeats
    if trainings < 2:
        return None
    plain = SearchCost(settings=len(mechanisms), trainings=trainings, delta=DELTA)
    try:
        one, every = any_of(mechanisms), fixed_search([*mechanisms] * repeats)
        law = TruncatedNegativeBinomial.with_mean(trainings)
        found = {"single": one, "composed": every, "random": random_search(one, law)}
    except BadInput:
        return plain
    return plain.model_copy(
        update={name: epsilon_of_renyi(guarantee, DELTA) for name, guarantee in found.items()}
    )
