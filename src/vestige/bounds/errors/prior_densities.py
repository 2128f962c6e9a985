"""Densities over records whose Fisher information is known: what van Trees needs of a prior.

The information I_π = E[∇log π ∇log πᵀ] exists only for densities that fall to zero without a jump,
so records that are uniform on [0, 1] have none; the cosine density is the one on an interval whose
information is least. Values of different records of a batch are independent under all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from vestige.errors import BadInput
from vestige.mechanisms import require

if TYPE_CHECKING:
    from vestige.bounds.bound import Array


class PriorDensity(Protocol):
    """A density over records of a number of values."""

    def information(self, values: int) -> Array:
        """I_π (values, values) of one record."""
        ...

    def variance(self, values: int) -> float:
        """Trace of the covariance of one record: the error of a guess without the release."""
        ...

    def draw(self, count: int, values: int, generator: np.random.Generator) -> Array:
        """Records (count, values) around zero, for the expectation over Jacobians."""
        ...

    def in_words(self) -> str:
        """What the density is, as the middle of a sentence."""
        ...


@dataclass(frozen=True)
class GaussianDensity:
    """Independent Gaussian values of one standard deviation s_π: I_π = I/s_π²."""

    deviation: float

    def __post_init__(self) -> None:
        require(0 < self.deviation < math.inf, "A prior's standard deviation is positive, finite.")

    def information(self, values: int) -> Array:
        """I/s_π²."""
        return np.eye(values) / self.deviation**2

    def variance(self, values: int) -> float:
        """Values times s_π²."""
        return values * self.deviation**2

    def draw(self, count: int, values: int, generator: np.random.Generator) -> Array:
        """Records (count, values) around zero."""
        return self.deviation * generator.standard_normal((count, values))

    def in_words(self) -> str:
        """What the density is."""
        return f"Gaussian with independent values of standard deviation {self.deviation:g}"


@dataclass(frozen=True, eq=False)
class CorrelatedGaussianDensity:
    """Gaussian records with a covariance Σ (d, d) among their values: I_π = Σ⁻¹.

    Neighbouring pixels resemble each other. An attacker who knows it can do better than independent
    values of the same variance allow, so for images this is the more careful Gaussian.
    """

    covariance: Array

    def __post_init__(self) -> None:
        matrix = np.asarray(self.covariance, dtype=np.float64)
        square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
        if not square or not np.isfinite(matrix).all() or not np.allclose(matrix, matrix.T):
            raise BadInput("A covariance is a finite symmetric matrix: values by values.")
        least, most = np.linalg.eigvalsh(matrix)[[0, -1]]
        if least <= len(matrix) * np.finfo(np.float64).eps * most:
            raise BadInput(
                "A covariance that leaves a direction without variance has no Fisher information: "
                "add a small variance to its diagonal."
            )

    def information(self, values: int) -> Array:
        """Σ⁻¹."""
        return np.asarray(np.linalg.inv(self._checked(values)), dtype=np.float64)

    def variance(self, values: int) -> float:
        """Trace of Σ."""
        return float(np.trace(self._checked(values)))

    def draw(self, count: int, values: int, generator: np.random.Generator) -> Array:
        """Records (count, values) around zero."""
        root = np.linalg.cholesky(self._checked(values))
        return generator.standard_normal((count, values)) @ root.T

    def in_words(self) -> str:
        """What the density is."""
        return "Gaussian with the covariance given"

    def _checked(self, values: int) -> Array:
        matrix = np.asarray(self.covariance, dtype=np.float64)
        if len(matrix) != values:
            raise BadInput(
                f"The covariance is one of {len(matrix)} values, but records have {values}: give "
                "that of a whole record."
            )
        return matrix


@dataclass(frozen=True)
class CosineDensity:
    """Independent values on an interval of a width: density (2/w)cos²(πt/w), I_π = 4π²/w².

    The least information that a density on an interval can have (Bickel 1981), so this gives a
    van Trees bound for a prior that stays in [0, 1] as pixels do.
    """

    width: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.width < math.inf, "The width of an interval is positive and finite.")

    def information(self, values: int) -> Array:
        """4π²/w² on the diagonal."""
        return np.eye(values) * (2 * math.pi / self.width) ** 2

    def variance(self, values: int) -> float:
        """Values times w²(1/12 − 1/(2π²))."""
        return values * self.width**2 * (1 / 12 - 1 / (2 * math.pi**2))

    def draw(self, count: int, values: int, generator: np.random.Generator) -> Array:
        """Records (count, values) around zero, so within half a width of it."""
        # 1 + cos 2πt at t and at t ± ½ add up to 2: what one rejects, the other accepts.
        places = generator.random((count, values)) - 0.5
        rejected = 2 * generator.random((count, values)) > 1 + np.cos(2 * math.pi * places)
        moved = np.where(places > 0, places - 0.5, places + 0.5)
        return self.width * np.where(rejected, moved, places)

    def in_words(self) -> str:
        """What the density is."""
        return f"cos² with independent values on an interval of width {self.width:g}"


def prior_deviation(records: Array) -> float:
    """s_π of records (n, *shape): the root of their mean variance per value.

    The attacker knows labels: give records of one label for what is then left to guess. A
    ``Prior``'s are ``prior.records.x[prior.members(label)]``.
    """
    flat = np.asarray(records, dtype=np.float64)
    if flat.ndim < 2 or len(flat) < 2 or not np.isfinite(flat).all():
        raise BadInput("A deviation needs at least two records, (n, values), all finite.")
    return math.sqrt(float(flat.reshape(len(flat), -1).var(axis=0, ddof=1).mean()))
