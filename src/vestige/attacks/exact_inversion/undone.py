"""What a client did to a gradient, undone as far as a reader can: factors, masks, known noise."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.linalg import svd
from torch import Tensor, nn

from vestige.attacks.exact_inversion.layers import gradient_factor
from vestige.simulation.alterations import join_tensors, known_factor

if TYPE_CHECKING:
    from vestige.attacks.exact_inversion.noise import Noise
    from vestige.attacks.gradient_matching.matching import Matching
    from vestige.interfaces import Release

MOST_RECORDS = 8
"""Ranks that are tried where the batch size is unknown."""

SWEEPS, EXACT = 400, 1e-7
"""Rounds of least squares at most, and the relative miss of known entries that ends them."""

EXPLAINED = 1e-5
"""Relative miss of the known entries below which a completed gradient counts as right."""


def undo_alterations(matching: Matching) -> tuple[Release, Noise | None]:
    """The release with alterations taken back, and its noise in units of the mean loss's gradient.

    A factor is divided out. Entries that a random mask took away are filled so that the gradient of
    every linear layer has the rank of the batch (Candès and Recht 2009; by least squares);
    where that does not explain the entries that were kept, the release stays as it is. Noise is
    None where the release has to tell it.
    """
    simulator, release = matching.simulator, matching.release
    if not simulator.alterations and simulator.clipped_noise is None:
        return release, None
    names, reading = matching.names, matching.reading
    tensors = {name: release.tensors[name].detach() for name in names}
    sizes = [tensors[name].numel() for name in names]
    factor = known_factor(simulator.alterations, join_tensors(tensors), sizes) or 1.0
    tensors = {name: tensor / factor for name, tensor in tensors.items()}
    noise: Noise | None = None
    if reading.certain and isinstance(reading.deviation, float) and reading.deviation > 0:
        scale = gradient_factor(simulator, matching.records)
        noise = reading.deviation * abs(scale) / factor
    if reading.kept is not None and simulator.random and noise is None and simulator.clients == 1:
        masks = dict(zip(names, reading.kept.split(sizes)))
        for name, module in simulator.network.named_modules():
            if isinstance(module, nn.Linear):
                _complete(tensors, masks, f"{name}." if name else "", matching.records)
    return replace(release, tensors={**release.tensors, **tensors}), noise


def _complete(
    tensors: dict[str, Tensor], mask: dict[str, Tensor], prefix: str, records: int | None
) -> None:
    """Fill the gradient of one linear layer, weights and bias as one matrix of low rank."""
    weight, bias = prefix + "weight", prefix + "bias"
    if weight not in tensors:
        return
    parts = [tensors[weight]] + ([tensors[bias][:, None]] if bias in tensors else [])
    carries = [mask[n].reshape(p.shape) for n, p in zip((weight, bias), parts)]
    matrix = torch.cat(parts, 1).double().cpu().numpy()
    known = torch.cat(carries, 1).cpu().numpy()
    for rank in range(1, MOST_RECORDS + 1) if records is None else (records,):
        whole = _of_rank(matrix, known, rank)
        if whole is None:
            continue
        completed = torch.from_numpy(whole).to(parts[0])
        tensors[weight] = completed[:, : parts[0].shape[1]]
        if len(parts) > 1:
            tensors[bias] = completed[:, -1]
        return


def _of_rank(matrix: np.ndarray, known: np.ndarray, rank: int) -> np.ndarray | None:
    """The matrix with its unknown entries filled, None if no matrix of this rank explains it.

    Rows and columns that are nowhere known stay zero, and so do rows with too few known entries to
    be checked.
    """
    rows = np.flatnonzero(known.sum(1) > rank)
    columns = np.flatnonzero(known[rows].any(0))
    part, there = matrix[np.ix_(rows, columns)], known[np.ix_(rows, columns)].astype(float)
    if min(part.shape, default=0) <= rank or there.sum(0).min() < rank:
        return None
    right = svd(part, full_matrices=False)[2][:rank].T
    size, before, left = np.linalg.norm(part), np.inf, np.zeros((len(rows), rank))
    miss = np.inf
    for sweep in range(SWEEPS):
        left = _fitted(part, there, right)
        right = _fitted(part.T, there.T, left)
        miss = float(np.linalg.norm(there * (left @ right.T - part)) / max(size, 1e-300))
        if miss < EXACT or (sweep > 50 and miss > 0.999 * before):
            break
        before = miss
    if miss > EXPLAINED:
        return None
    whole = np.zeros_like(matrix)
    whole[np.ix_(rows, columns)] = np.where(there > 0, part, left @ right.T)
    return whole


def _fitted(matrix: np.ndarray, there: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Coefficients (n, r) of each row (n, D) in a basis (D, r), by its known entries alone."""
    normal = np.einsum("nd,dr,ds->nrs", there, basis, basis, optimize=True)
    small = 1e-12 * np.trace(normal, axis1=1, axis2=2)[:, None, None] + 1e-300
    return np.linalg.solve(
        normal + small * np.eye(basis.shape[1]), ((there * matrix) @ basis)[:, :, None]
    )[:, :, 0]
