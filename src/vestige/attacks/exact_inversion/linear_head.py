"""Certificate of the features of a head that is one linear layer: Pan et al. 2020, Section 8.6.

∂W = Σ_m (softmax(W·f_m) − y_m)·f_mᵀ/M has no masks to count rows by. What stands in for them are
the equations in excess of the unknowns, (K − 1)(d + 1) − M·d with a bias, each of which a wrong
solution meets by chance with the probability of being within the tolerance. The other conditions
are those of ``certificate``: one solution nearby with an error bound below 1%, and a residual at
the precision of the release.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from vestige.attacks.exact_inversion.certificate import ERROR_PROBABILITY, LARGEST_BOUND, MARGIN
from vestige.attacks.exact_inversion.noise import ROUNDING, Noise, detected_precision, deviations

if TYPE_CHECKING:
    from vestige.attacks.exact_inversion.layers import DenseLayer

MOST_UNKNOWNS = 2000
"""Size of the reduced system beyond which nothing is certified."""
LIMIT = 6.0
STEPS = 4


def certify_features(
    layer: DenseLayer, features: Tensor, labels: Tensor, noise: Noise | None, *, labels_told: bool
) -> tuple[Tensor, Tensor]:
    """Features (b, d) after some Gauss–Newton steps, and which of them are certified (b,)."""
    nothing = torch.zeros(len(features), dtype=torch.bool)
    weight, gradient, bias, slope = (
        None if t is None else t.detach().cpu().double().numpy()
        for t in (layer.weight, layer.weight_gradient, layer.bias, layer.bias_gradient)
    )
    assert weight is not None
    assert gradient is not None
    (classes, width), count = weight.shape, len(features)
    wanted = gradient if slope is None else np.hstack([gradient, slope[:, None]])
    tensors = [t for t in (layer.weight_gradient, layer.bias_gradient) if t is not None]
    kind = detected_precision(*tensors) if noise is None else noise
    if 2 * count * classes > MOST_UNKNOWNS:
        return features, nothing
    x, offsets = features.cpu().numpy(), 0.0 if bias is None else bias
    deviation = np.full(count, np.inf)
    for _ in range(STEPS):
        chance = softmax(x @ weight.T + offsets, axis=1)
        solved = _step(weight, x, chance, labels.numpy(), wanted, slope is not None)
        if solved is None:
            return features, nothing
        change, deviation = solved
        x = x + change
    losses = softmax(x @ weight.T + offsets, axis=1) - np.eye(classes)[labels.numpy()]
    full = x if slope is None else np.hstack([x, np.ones((count, 1))])
    rounding = ROUNDING["float64" if kind == "float64" else "float32"][0]
    # A loss p − y rounds at the size of one for the label, whatever it is.
    mass = (np.abs(losses) + np.eye(classes)[labels.numpy()]).T @ np.abs(full) / count
    spread = np.hypot(deviations(wanted, kind), 3 * rounding * mass)
    missed = losses.T @ full / count - wanted
    # All entries weigh the same in the fit, so what it leaves is spread over all of them.
    misfit = np.linalg.norm(missed) / max(float(np.linalg.norm(spread)), 1e-300)
    excess = (classes - 1) * full.shape[1] - count * width
    typical = float(np.sqrt(np.mean(wanted**2)))
    single = min(1.0, LIMIT * float(np.sqrt(np.mean(spread**2))) / max(typical, 1e-300))
    tries = 0.0 if labels_told else count * math.log(classes)
    lucky = max(excess, 0) * math.log(max(single, 1e-300)) + tries
    bound = np.linalg.norm(x - features.cpu().numpy(), axis=1)
    bound += MARGIN * deviation * float(spread.max())
    bound /= np.maximum(np.linalg.norm(x, axis=1), 1e-300)
    if not misfit < LIMIT or not lucky < math.log(ERROR_PROBABILITY):
        return features, nothing
    return features, torch.from_numpy(bound < LARGEST_BOUND)


def _step(
    weight: np.ndarray,
    x: np.ndarray,
    chance: np.ndarray,
    labels: np.ndarray,
    wanted: np.ndarray,
    with_bias: bool,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Gauss–Newton change (b, d), and each record's error (b,) per unit of noise in an entry.

    With Δ = Q·R the Jacobian in R·dF is Q ⊗ I plus a part of rank b·K, which leaves everything
    outside 2·b·K directions as it is.
    """
    (count, width), classes = x.shape, len(weight)
    losses = chance - np.eye(classes)[labels]
    full = np.hstack([x, np.ones((count, 1))]) if with_bias else x
    q, upper = np.linalg.qr(losses.T / count)
    if np.abs(np.diag(upper)).min() < 1e-12 * np.abs(np.diag(upper)).max():
        return None
    inverse = np.linalg.inv(upper)
    slopes = np.stack([(np.diag(p) - np.outer(p, p)) @ weight for p in chance])
    bent = np.einsum("ma,mkd->mkad", inverse, slopes).reshape(count * classes, -1)
    straight = np.einsum("ka,md->mkad", q, x).reshape(count * classes, -1)
    basis, scale, _ = np.linalg.svd(np.vstack([bent, straight]).T, full_matrices=False)
    basis = basis[:, scale > 1e-13 * scale[0]]
    size = basis.shape[1]

    def mapped(directions: np.ndarray) -> np.ndarray:
        moved = directions.T.reshape(-1, count, width)
        direct = np.einsum("ka,sad->skd", q, moved)
        if with_bias:
            direct = np.concatenate([direct, np.zeros((*direct.shape[:2], 1))], 2)
        indirect = (directions.T @ bent.T).reshape(-1, count, classes)
        direct = direct + np.einsum("smk,md->skd", indirect, full) / count
        return direct.reshape(len(direct), -1).T

    image = mapped(basis)
    _, values, turn = np.linalg.svd(image, full_matrices=False)
    if len(values) < size or values[-1] < 1e-10 * values[0]:
        return None
    missed = wanted - losses.T @ full / count
    pulled = (q.T @ missed[:, :width]).ravel()
    pulled = pulled + bent.T @ (np.einsum("kd,md->mk", missed, full) / count).ravel()
    inside = basis.T @ pulled
    core = turn.T @ ((turn @ inside) / values**2)
    change = inverse @ (pulled - basis @ inside + basis @ core).reshape(count, width)
    spread = np.einsum("ma,asd->msd", inverse, basis.T.reshape(size, count, width).swapaxes(0, 1))
    total = width * np.square(inverse).sum(1) - np.square(spread).sum((1, 2))
    inner = np.einsum("msd,rs->mrd", spread, turn / values[:, None])
    return change, np.sqrt(np.maximum(total, 0) + np.square(inner).sum((1, 2)))
