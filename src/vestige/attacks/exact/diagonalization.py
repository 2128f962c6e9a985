"""Samples out of the null space of the lifted equations: Z_k = Q·D_k·Qᵀ, Y_k = Q·D_k·Γᵀ."""

from __future__ import annotations

import numpy as np

TRIES = 6


def diagonalized(
    left: np.ndarray,
    outgoing: np.ndarray,
    z: np.ndarray,
    y: np.ndarray,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Mixing columns q (b, b), one for each sample, and what the next layer sends back γ (k, b).

    Q holds the eigenvectors of Z_a·Z_b⁻¹ for two random combinations; of several draws the one
    whose samples satisfy their equations best is kept.
    """
    size = np.linalg.norm(left, axis=0)
    scaled = size[:, None] * z * size
    best, kept = np.inf, None
    for _ in range(TRIES):
        one, two = np.tensordot(generator.standard_normal((2, len(z))), scaled, axes=1)
        try:
            _, columns = np.linalg.eig(np.linalg.solve(two.T, one.T).T)
        except np.linalg.LinAlgError:
            continue
        columns = _real(columns)
        inverse, _, rank, _ = np.linalg.lstsq(columns, np.eye(len(columns)), rcond=1e-14)
        if rank < len(columns):
            continue
        shares = np.einsum("mi,kij,mj->km", inverse, scaled, inverse)
        rows = np.einsum("mi,kij->kmj", inverse, size[:, None] * y)
        gamma = np.einsum("km,kmj->jm", shares, rows) / np.maximum((shares**2).sum(0), 1e-300)
        q = columns / size[:, None]
        score = float(np.log(inconsistency(left, outgoing, q, gamma) + 1e-300).mean())
        if score < best:
            best, kept = score, (q, gamma)
    if kept is None:
        return np.eye(left.shape[1]), np.zeros((outgoing.shape[1], left.shape[1]))
    return kept


def inconsistency(
    left: np.ndarray, outgoing: np.ndarray, q: np.ndarray, gamma: np.ndarray
) -> np.ndarray:
    """For each sample, how far derivatives L·q lie from both zero and w̃·γ, relative to L·q."""
    derivative, sent = left @ q, outgoing @ gamma
    nearest = np.minimum(np.abs(derivative), np.abs(derivative - sent))
    scale = np.linalg.norm(derivative, axis=0)
    return np.linalg.norm(nearest, axis=0) / np.maximum(scale, 1e-300)


def _real(columns: np.ndarray) -> np.ndarray:
    """Real columns that span the same: a complex pair gives its real and imaginary part."""
    if not np.iscomplexobj(columns):
        return columns
    real = np.real(columns).copy()
    lone = np.flatnonzero(np.abs(np.imag(columns)).max(0) > 0)
    real[:, lone[1::2]] = np.imag(columns)[:, lone[1::2]]
    return real / np.maximum(np.linalg.norm(real, axis=0), 1e-300)
