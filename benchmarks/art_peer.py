"""Drives the Adversarial Robustness Toolbox (ART), for comparison on identical fitted models."""

from __future__ import annotations

import importlib.util
import time
import warnings

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

ABSENT = "adversarial-robustness-toolbox is not installed: not compared"


def available() -> bool:
    """Return whether ART is installed."""
    return importlib.util.find_spec("art") is not None


def missing_row(
    model: LogisticRegression | GaussianNB, known: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, int, float]:
    """Run DatabaseReconstruction; return the row (d,), its label and CPU seconds.

    It fits the model anew for every guess of the missing row and follows finite differences until
    the parameters agree, once for each label.
    """
    from art.attacks.inference.reconstruction import DatabaseReconstruction
    from art.estimators.classification.scikitlearn import (
        ScikitlearnGaussianNB,
        ScikitlearnLogisticRegression,
    )

    if isinstance(model, GaussianNB):
        estimator = ScikitlearnGaussianNB(model)
    else:
        estimator = ScikitlearnLogisticRegression(model)
    attack = DatabaseReconstruction(estimator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fits of poor guesses that do not converge
        before = time.process_time()
        row, label = attack.reconstruct(known, labels)
        seconds = time.process_time() - before
    return row[0], int(label.argmax()), seconds
