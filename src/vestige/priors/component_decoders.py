"""Decoder of photographs: principal components by ridge regression, corrected by a network.

Few public photographs determine a linear map from features to pictures well and a network badly.
So the map is fitted in closed form, on principal components of the pictures in which all
directions have variance one, and a network that begins at zero learns what the map misses.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.records import Space

OVERSAMPLING = 20
"""Directions beyond those that are kept, in the randomised search for principal components."""


@dataclass(frozen=True)
class ComponentDecoder:
    """Ridge regression onto whitened principal components, plus a network that begins at zero.

    ``ridge`` is the penalty λ of (RᵀR + λI)⁻¹RᵀC with standardised inputs R and components C.
    """

    components: int = 320
    ridge: float = 100.0
    hidden: tuple[int, ...] = (768, 768)
    dropout: float = 0.2

    logistic = False

    def __post_init__(self) -> None:
        check_fields(self, counts=("components",), positive=("ridge",), not_negative=("dropout",))
        if not self.hidden or min(self.hidden) < 1:
            raise BadInput("A decoder needs hidden layers of at least one unit.")
        if self.dropout >= 1:
            raise BadInput("dropout of ComponentDecoder must be below 1.")

    def network(self, inputs: int, space: Space) -> nn.Module:
        """Build it; it draws zeros until it has begun (:meth:`ComponentNetwork.begin`)."""
        return ComponentNetwork(self, inputs, space)


class ComponentNetwork(nn.Module):
    """Rows (n, inputs) → values of records (n, size), not bounded."""

    mean: Tensor
    directions: Tensor
    slopes: Tensor

    def __init__(self, form: ComponentDecoder, inputs: int, space: Space) -> None:
        super().__init__()
        size = math.prod(space.shape)
        self.form, self.retained = form, min(form.components, size)
        self.mean = nn.Buffer(torch.zeros(size))
        self.directions = nn.Buffer(torch.zeros(self.retained, size))
        self.slopes = nn.Buffer(torch.zeros(inputs, self.retained))
        widths = (inputs, *form.hidden)
        layers = [
            part
            for before, after in itertools.pairwise(widths)
            for part in (nn.Linear(before, after), nn.GELU(), nn.Dropout(form.dropout))
        ]
        last = nn.Linear(widths[-1], self.retained)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.correction = nn.Sequential(*layers, last)

    @torch.no_grad()
    def begin(self, pictures: Tensor, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Find the components of pictures (n, size), and fit batches of rows and pictures."""
        flat = pictures.flatten(1).float()
        self.mean.copy_(flat.mean(0))
        values, vectors = principal_components(flat - self.mean, self.retained)
        scale = values.clamp_min(1e-12 + 1e-6 * float(values.max())).sqrt()
        self.directions[: len(values)] = scale[:, None] * vectors
        whitening = (vectors / scale[:, None]).T
        normal = torch.zeros(2 * (len(self.slopes),), dtype=torch.float64)
        right = torch.zeros(self.slopes.shape, dtype=torch.float64)
        for rows, goals in batches:
            components = (goals.flatten(1) - self.mean) @ whitening
            normal += (rows.T @ rows).cpu().double()
            right[:, : len(values)] += (rows.T @ components).cpu().double()
        self.slopes.copy_(ridge_solution(normal, right, self.form.ridge))

    def forward(self, rows: Tensor) -> Tensor:
        """Draw."""
        return self.mean + (rows @ self.slopes + self.correction(rows)) @ self.directions


def principal_components(centred: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Variances (k,) and directions (k, size) of rows (n, size), by a randomised range finder.

    Halko, Martinsson and Tropp 2011, Algorithm 4.4 with three iterations; k is at most n − 1.
    """
    rows, size = centred.shape
    retained = min(count, rows - 1, size)
    if retained < 1:
        raise BadInput("Principal components need at least two records.")
    sketched = min(retained + OVERSAMPLING, rows, size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _, values, vectors = torch.svd_lowrank(centred, q=sketched, niter=3)
    return values[:retained].square() / (rows - 1), vectors.T[:retained]


def ridge_solution(normal: Tensor, right: Tensor, penalty: float) -> Tensor:
    """(RᵀR + λI)⁻¹RᵀC, from RᵀR and RᵀC."""
    regular = normal + penalty * torch.eye(len(normal), dtype=normal.dtype)
    return torch.cholesky_solve(right, torch.linalg.cholesky(regular))
