"""A dense head's gradient made ready for the lift: precision or noise, pruning, factors, rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import null_space

from vestige.attacks.exact.layers import DenseHead
from vestige.attacks.exact.noise import (
    ROUNDING,
    Factors,
    Noise,
    checked,
    constant_level,
    detected_precision,
    factored,
)
from vestige.attacks.exact.null_space import unknowns
from vestige.attacks.exact.propagation import gradient_matrix
from vestige.attacks.exact.pruning import filled, pruning_edge


@dataclass(frozen=True)
class Reading:
    """What the lift reads of two adjacent layers.

    ``released`` is [∂W | ∂b] of the first layer as released; ``factors`` those of the matrix with
    pruned entries filled; each of ``bases`` (d₂, k) spans the loss vectors of the second layer;
    ``coarse`` says whether refinement can add anything to the lift; ``doubt`` how many times the
    assumed noise filled entries may be off.
    """

    released: np.ndarray
    factors: Factors
    bases: tuple[np.ndarray, ...]
    noise: Noise
    with_bias: bool
    coarse: bool
    missing: np.ndarray | None = None
    edge: np.ndarray | None = None
    doubt: float = 1.0


def read(head: DenseHead, noise: Noise | None, batch_size: int | None) -> Reading:
    """Find the noise, fill what was pruned, and factor the first two layers' gradients."""
    first, second = gradient_matrix(head, 0), gradient_matrix(head, 1)
    with_bias = head.layers[0].bias_gradient is not None
    kind = _precision(head) if noise is None else checked(noise)
    step = ROUNDING[kind][1] if isinstance(kind, str) else 0.0
    parts = (with_bias, head.layers[1].bias_gradient is not None)
    if any(_edge(matrix, part, step) for matrix, part in zip((first, second), parts)):
        missing, edges = first == 0, _edges(first, with_bias)
        matrix, rank, rest = filled(first, missing, edges, rank=batch_size)
        second, _, _ = filled(second, second == 0, _edges(second, parts[1]), rank=rank)
        # Where filling does not explain the known entries, what is left is noise to the fit, but
        # filled ones are as uncertain as their bounds say.
        doubt = 1.0
        if rest > 1e-5 * float(np.sqrt(np.mean(first[first != 0] ** 2))):
            # They are not independent of one another either: a factor of three.
            doubt = max(1.0, 3 * float(np.sqrt(np.mean(missing * edges**2 / 3))) / rest)
            kind = rest
        factors = factored(matrix, kind, rank=batch_size, most=rank)
        bases = (_basis(second, kind, factors.rank),)
        return Reading(first, factors, bases, kind, with_bias, True, missing, edges, doubt)
    level = constant_level(first, kind) if noise is None and isinstance(kind, str) else None
    factors = factored(first, kind if level is None else level, most=batch_size)
    if level is not None and factors.rank:
        kind = level
    coarse = not isinstance(kind, str) or kind in ("float16", "bfloat16")
    bases = (_basis(second, kind, factors.rank),)
    # A noisy basis loses small loss vectors: do without where there are neurons enough.
    if coarse and 2 * unknowns(factors.rank, len(second)) <= len(factors.rows):
        # At the logits they sum to zero, up to rounding that is far below this noise.
        whole = null_space(np.ones((1, len(second)))) if len(head.layers) == 2 else None
        bases = (np.eye(len(second)) if whole is None or not whole.size else whole, *bases)
    return Reading(first, factors, bases, kind, with_bias, coarse)


def _precision(head: DenseHead) -> str:
    tensors = [head.layers[0].weight_gradient, head.layers[1].weight_gradient]
    tensors += [t for layer in head.layers[:2] if (t := layer.bias_gradient) is not None]
    return detected_precision(*tensors)


def _basis(second: np.ndarray, noise: Noise, rank: int) -> np.ndarray:
    """Columns (d₂, k) that span the loss vectors: those of the gradient, or all if b ≥ d₂."""
    size = len(second)
    if rank >= size:
        return np.eye(size)
    factors = factored(second, noise, rank=rank)
    basis = np.zeros((size, factors.rank))
    basis[factors.rows] = factors.row_scale[:, None] * factors.left
    return basis / np.linalg.norm(basis, axis=0)


def _edge(matrix: np.ndarray, with_bias: bool, step: float) -> bool:
    """Whether the weights or the bias of a layer show the edge that pruning leaves.

    Zeros of whole rows and columns do not count: dead neurons and empty features leave them too.
    """
    live = matrix[(matrix != 0).any(1)]
    parts = (live[:, :-1], live[:, -1:]) if with_bias else (live,)
    return any(pruning_edge(part[:, (part != 0).any(0)], step) is not None for part in parts)


def _edges(matrix: np.ndarray, with_bias: bool) -> np.ndarray:
    """How large a pruned entry can have been: the smallest that is left, weights and bias apart."""
    edges = np.zeros(matrix.shape)
    for part in (slice(None, -1), slice(-1, None)) if with_bias else (slice(None),):
        left = np.abs(matrix[:, part])
        edges[:, part] = left[left > 0].min(initial=np.inf)
    return np.where(np.isfinite(edges), edges, 0.0)
