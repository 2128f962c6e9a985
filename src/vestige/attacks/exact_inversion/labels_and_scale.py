"""Labels from loss vectors, the batch's divisor, and the length of records without a bias.

In a head of two layers the recovered vector is ∝ p − y: its single negative entry is the label
(Pan et al. 2020, Section 4). In deeper ones the label is the one whose backpropagated p − y has
the direction of the recovered vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import OptimizeResult, minimize_scalar

from vestige.attacks.exact_inversion.propagation import Propagation, possible_losses


@dataclass(frozen=True)
class Labelled:
    """labels (b,), how well the loss vectors agree (b,) in [0, 1], and the divisor M of each.

    Agreement is one minus the relative distance between a record's own loss vector and M times
    the recovered one, M being the batch's.
    """

    labels: np.ndarray
    agreement: np.ndarray
    divisor: np.ndarray


def read_labels(network: Propagation, x: np.ndarray, sent: np.ndarray) -> Labelled:
    """Read labels of inputs x (b, D) from loss vectors (b, d₂): (p − y)/M, carried back."""
    activations = network.forward(x)
    possible = network.backward(activations, possible_losses(activations[-1]))[1]
    cosine, ratio = _compared(possible, sent)
    labels = _signed(network, sent)
    if labels is None:
        labels = cosine.argmax(1)
    chosen = np.arange(len(x)), labels
    own, divisor = possible[chosen], ratio[chosen]
    wanted = consensus(divisor, cosine[chosen]) * sent
    size = np.maximum(np.linalg.norm(own, axis=1), 1e-300)
    distance = np.linalg.norm(own - wanted, axis=1) / size
    return Labelled(labels, np.clip(1 - distance, 0, 1), divisor)


def consensus(divisors: np.ndarray, trust: np.ndarray) -> float:
    """The batch's divisor: the median over the trusted records, whole where it nearly is."""
    middle = float(np.median(divisors[trust >= min(0.9, trust.max())]))
    near = float(np.round(middle))
    return near if near and abs(middle / near - 1) < 0.02 else middle


def find_scales(
    network: Propagation, direction: np.ndarray, sent: np.ndarray, divisors: tuple[float, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Find the factor s of each direction (b, D): p(s·x) − y = M·sent/s, and M among divisors.

    Scaling x by s divides the loss vector that explains the same gradient by s.
    """
    hidden = direction @ network.weights[0].T
    labels = _signed(network, sent)
    size = np.maximum(np.linalg.norm(direction, axis=1), 1e-300)
    grid = np.geomspace(1e-3, 1e5, 400)
    best = np.full(len(direction), np.inf)
    factors, best_divisors = np.ones(len(direction)), np.full(len(direction), divisors[0])
    for m in range(len(direction)):
        allowed = None if labels is None else labels[m]

        def mismatch(factor: np.ndarray, divisor: float, m=m, allowed=allowed) -> np.ndarray:
            activations = network.forward(np.maximum(factor[:, None] * hidden[m], 0), 1)
            possible = network.backward(activations, possible_losses(activations[-1]))[0]
            wanted = (divisor / factor)[:, None, None] * sent[m]
            weight = np.linalg.norm(possible, axis=2) + np.linalg.norm(wanted, axis=2)
            miss = np.linalg.norm(possible - wanted, axis=2) / np.maximum(weight, 1e-300)
            return miss.min(1) if allowed is None else miss[:, allowed]

        for divisor in divisors:
            tried = mismatch(grid / size[m], divisor)
            # Several dips are possible: refine the three deepest.
            inner = np.flatnonzero((tried[1:-1] <= tried[:-2]) & (tried[1:-1] <= tried[2:])) + 1
            for at in inner[np.argsort(tried[inner])][:3]:
                low, high = np.log(grid[at - 1] / size[m]), np.log(grid[at + 1] / size[m])
                done: OptimizeResult = minimize_scalar(  # type: ignore[assignment]
                    lambda log, d=divisor: float(mismatch(np.exp([log]), d)[0]),
                    bounds=(low, high),
                    method="bounded",
                    options={"xatol": 1e-12},
                )
                if done.fun < best[m]:
                    best[m], factors[m], best_divisors[m] = done.fun, np.exp(done.x), divisor
    return factors, best_divisors


def log_linear_scale(
    directions: np.ndarray, offsets: np.ndarray, losses: np.ndarray, labels: np.ndarray
) -> np.ndarray:
    """Lengths α (n,) for which softmax(α·u + b) has the ratios of the loss vectors' entries.

    Away from the label a loss vector is p up to scale, so log v_c = α·u_c + b_c + constant: a
    straight line, where Algorithm 1 of Pan et al. 2020 guesses ḡ₁ = 2δ/3. Weights v² are the
    inverse variance of log v under equal relative noise. directions u (n, K), offsets b (K,),
    losses v (n, K) up to a positive scale, labels (n,); needs three classes.
    """
    positive = losses > 0
    positive[np.arange(len(labels)), labels] = False
    logs = np.where(positive, np.log(np.where(positive, losses, 1.0)) - offsets, 0.0)
    weight = np.where(positive, losses, 0.0) ** 2
    weight /= np.maximum(weight.sum(1, keepdims=True), 1e-300)
    u = directions - (weight * directions).sum(1, keepdims=True)
    spread = (weight * u**2).sum(1)
    return (weight * u * logs).sum(1) / np.maximum(spread, 1e-300)


def _signed(network: Propagation, sent: np.ndarray) -> np.ndarray | None:
    """Labels from signs in a head of two layers; None for deeper ones."""
    if len(network.weights) > 2:
        return None
    if sent.shape[1] == 1:
        return (sent[:, 0] < 0).astype(np.int64)
    return sent.argmin(1)


def _compared(possible: np.ndarray, sent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and ratio of lengths of possible (b, o, d) and recovered (b, d) vectors."""
    length = np.maximum(np.linalg.norm(possible, axis=2), 1e-300)
    own = np.maximum(np.linalg.norm(sent, axis=1), 1e-300)[:, None]
    inner = np.einsum("mod,md->mo", possible, sent)
    return inner / length / own, length / own
