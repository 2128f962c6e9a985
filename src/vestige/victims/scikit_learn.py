"""Linear classifiers that users have fitted: what they minimised, and where they ended.

scikit-learn minimises C·Σℓ + ½‖w‖² with a free intercept, which is our Σℓ + (nλ/2)‖w‖² with
λ = 1/(C·n). Whatever else it can minimise (weights of classes, other penalties, one model for
each class) is refused: the closed form would answer with a wrong record.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from vestige.errors import BadInput
from vestige.records import Records
from vestige.simulation.convex import ConvexFit, linear_layer

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression


def estimator_fit(estimator: object, known: Records) -> ConvexFit:
    """What a fitted LogisticRegression minimised over the known records and one more."""
    fitted = _fitted(estimator, known)
    free = fitted.solver != "liblinear"
    return ConvexFit(l2=1 / (fitted.C * (len(known) + 1)), penalize_bias=not free)


def estimator_parameters(estimator: object, known: Records) -> tuple[Tensor, Tensor]:
    """Weight (K, d) and bias (K,) of a fitted LogisticRegression, in its own precision."""
    fitted = _fitted(estimator, known)
    return torch.tensor(np.asarray(fitted.coef_)), torch.tensor(np.asarray(fitted.intercept_))


def module_parameters(module: nn.Module, known: Records) -> tuple[Tensor, Tensor]:
    """Weight (K, d) and bias (K,) of a module that is one linear layer."""
    _, layer = linear_layer(module)
    _check_size(tuple(layer.weight.shape), known)
    return layer.weight.detach().clone(), layer.bias.detach().clone()


def _fitted(estimator: object, known: Records) -> LogisticRegression:
    """The estimator, or why the closed form does not apply to it, in a sentence."""
    # Here, because it takes a second to import and few audits need it.
    from sklearn.linear_model import LogisticRegression

    if not isinstance(estimator, LogisticRegression):
        raise BadInput(
            f"A {type(estimator).__name__} is no scikit-learn LogisticRegression: give one, and "
            "apply the steps before it (scaling) to the known records yourself."
        )
    if not hasattr(estimator, "coef_"):
        raise BadInput("The LogisticRegression is not fitted: call its fit first.")
    reason = _not_covered(estimator)
    if reason:
        raise BadInput(
            f"The LogisticRegression {reason}, which the closed form does not cover: fit it with "
            "an L2 penalty, an intercept and no weights."
        )
    if int(np.max(estimator.n_iter_)) >= estimator.max_iter:
        raise BadInput(
            f"The LogisticRegression stopped after max_iter={estimator.max_iter} steps and has not "
            "converged: raise max_iter and fit it again."
        )
    names = [str(name) for name in estimator.classes_]
    if names not in ([str(label) for label in range(known.classes)], list(known.space.class_names)):
        raise BadInput(
            f"The LogisticRegression has the classes {', '.join(names[:5])}, which are not those "
            "of the known records: fit it on labels 0, 1, … or on the class names in their order."
        )
    _check_size(tuple(estimator.coef_.shape), known)
    return estimator


def _not_covered(estimator: LogisticRegression) -> str:
    """What an estimator minimised beside the plain objective, or nothing."""
    liblinear = estimator.solver == "liblinear"
    # Older versions name the penalty, newer ones give its share of L1 and an infinite C for none.
    penalty = getattr(estimator, "penalty", "deprecated")
    if penalty in ("l1", "elasticnet") or (penalty == "deprecated" and estimator.l1_ratio):
        return "has an L1 penalty"
    if penalty in (None, "none") or not math.isfinite(estimator.C):
        return "has no penalty"
    if not estimator.fit_intercept:
        return "has no intercept"
    if estimator.class_weight is not None:
        return "weighs its classes"
    if liblinear and len(estimator.classes_) > 2:
        return "is one model for each class"
    if liblinear and (estimator.intercept_scaling != 1 or getattr(estimator, "dual", False)):
        return "scales its intercept or solves the dual"
    if getattr(estimator, "multi_class", "auto") not in ("auto", "deprecated"):
        return "sets multi_class"
    return ""


def _check_size(shape: tuple[int, ...], known: Records) -> None:
    features = math.prod(known.space.shape)
    rows = (1, 2) if known.classes == 2 else (known.classes,)
    if shape not in [(row, features) for row in rows]:
        raise BadInput(
            f"The model's weight has shape {shape} where {features} features and {known.classes} "
            f"classes need {(rows[0], features)}: give the records it was fitted on."
        )
