"""Vectors u_i with M_n = Σ_i λ_ni·u_i·u_iᵀ for all of a set of small symmetric matrices."""

from __future__ import annotations

import torch
from torch import Tensor

ALTERNATIONS = 60


def decompose(matrices: Tensor, tries: int, generator: torch.Generator) -> list[Tensor]:
    """Unit columns (b, b) of several attempts at matrices (n, b, b), best fit first.

    Simultaneous diagonalisation: for two random combinations M, N of the matrices, the columns are
    eigenvectors of M·N⁻¹ (Kuleshov, Chaganty and Liang 2015, whom Wang, Lee and Lei 2023 follow).
    Combinations are taken of the b leading ones, which hold all of an exact set, and every attempt
    is refined by alternating least squares on the three-way array. Signs are arbitrary.
    """
    size = matrices.shape[1]
    if size == 1:
        return [torch.ones(1, 1).to(matrices)]
    flat = matrices.reshape(len(matrices), -1)
    # Leading combinations, each as long as its singular value.
    _, values, vectors = torch.linalg.svd(flat, full_matrices=False)
    leading = (values[:size, None] * vectors[:size]).reshape(-1, size, size)
    leading = (leading + leading.mT) / 2
    attempts: list[tuple[float, Tensor]] = []
    for _ in range(tries):
        mix = torch.randn(2, len(leading), generator=generator, dtype=torch.float64)
        one, two = torch.einsum("sn,nab->sab", mix, leading)
        columns = _refined(leading, _eigenvectors(one, two))
        attempts.append((unexplained_share(leading, columns), columns))
    attempts.sort(key=lambda pair: pair[0])
    return [columns for _, columns in attempts]


def unexplained_share(matrices: Tensor, columns: Tensor) -> float:
    """Share of the matrices' squared norm outside the span of the columns' squares u·uᵀ."""
    atoms = _squares(columns)
    flat = matrices.reshape(len(matrices), -1)
    fit = torch.linalg.lstsq(atoms, flat.T, driver="gelsd").solution
    missed = (flat.T - atoms @ fit).square().sum()
    return float(missed / flat.square().sum().clamp_min(1e-300))


def _squares(columns: Tensor) -> Tensor:
    """u_i·u_iᵀ as columns (b², b)."""
    return torch.einsum("ai,bi->abi", columns, columns).reshape(-1, columns.shape[1])


def _eigenvectors(one: Tensor, two: Tensor) -> Tensor:
    """Real unit columns (b, b): a complex pair gives its real and its imaginary part."""
    eye = 1e-12 * torch.linalg.matrix_norm(two) * torch.eye(len(two)).to(two)
    _, vectors = torch.linalg.eig(torch.linalg.solve(two + eye, one).T)
    columns = vectors.real.clone()
    lone = torch.nonzero(vectors.imag.abs().amax(0) > 0).flatten()
    columns[:, lone[1::2]] = vectors.imag[:, lone[1::2]]
    return _unit(columns)


def _refined(matrices: Tensor, columns: Tensor) -> Tensor:
    """Alternating least squares from these columns; kept if the fit is better."""
    size = len(columns)
    unfolded = matrices.permute(1, 0, 2).reshape(size, -1)
    flat = matrices.reshape(len(matrices), -1)
    left = right = columns
    for _ in range(ALTERNATIONS):
        shares = _solved(_paired(left, right), flat.T).T
        left = _unit(_solved(_paired(shares, right), unfolded.T).T)
        shares = _solved(_paired(left, right), flat.T).T
        # The matrices are symmetric: the same unfolding serves the other side.
        right = _unit(_solved(_paired(shares, left), unfolded.T).T)
    signs = torch.sign((left * right).sum(0))
    refined = _unit(left + signs * right)
    better = unexplained_share(matrices, refined) < unexplained_share(matrices, columns)
    return refined if better else columns


def _paired(one: Tensor, two: Tensor) -> Tensor:
    """Column by column products of all pairs of entries (n·m, b)."""
    return (one[:, None, :] * two[None, :, :]).reshape(-1, one.shape[1])


def _solved(system: Tensor, wanted: Tensor) -> Tensor:
    """Least squares by normal equations, made regular by a trace of damping."""
    gram = system.T @ system
    damped = gram + 1e-10 * gram.diagonal().mean().clamp_min(1e-300) * torch.eye(len(gram)).to(gram)
    return torch.linalg.solve(damped, system.T @ wanted)


def _unit(columns: Tensor) -> Tensor:
    return columns / torch.linalg.vector_norm(columns, dim=0).clamp_min(1e-300)
