"""Algorithms 1 to 3 of Pan et al. 2020 as they are printed, to show what their steps do.

Where the print cannot be followed, what was taken instead:

- Algorithm 1, line 13 sets δ = ḡ₁/ḡ_Y, which is negative unless Y = 1; its absolute value is
  meant, so that |ḡ_Y| = 2/3 with ḡ_Y < 0.
- "(r₂)_j is constant" is read up to 1e-5 in float32 and 1e-10 in float64.
- Algorithm 3, lines 13 and 14 solve softmax(W·f) = p with unnamed "optimization techniques", for
  more unknowns than equations: here the non-negative least squares solution of W·f = log p + c,
  zero where another record is known to be alone.
- With one record the patterns follow from Criterion 1 at every layer.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls

from vestige.attacks.exact.gradient_equation import least_squares_by_lsmr
from vestige.attacks.exact.propagation import Propagation

REPEATED = {torch.float64: 1e-10}
REPEATED_OTHERWISE = 1e-5


def literal_inversion(network: Propagation, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (M, in) and labels (M,), M the number of groups of equal ratios."""
    groups, ratios = _groups(network.weight_gradients[-1], REPEATED.get(dtype, REPEATED_OTHERWISE))
    if not groups:
        return np.zeros((0, network.weights[0].shape[1])), np.zeros(0, int)
    labels = np.array([_label(row) for row in ratios])
    own = ratios[np.arange(len(labels)), labels]
    losses = ratios * (-2 / 3 / own)[:, None]
    patterns = _patterns(network, groups, losses, labels)
    signals = _signals(network, patterns, losses)
    return least_squares_by_lsmr(signals, len(labels) * network.weight_gradients[0]), labels


def _groups(gradient: np.ndarray, tolerance: float) -> tuple[list[np.ndarray], np.ndarray]:
    """Algorithm 1, lines 3 to 10: neurons whose ratio r₂ repeats, and the ratios of each group."""
    with np.errstate(all="ignore"):
        ratios = gradient / gradient[0]
    usable = np.flatnonzero(np.isfinite(ratios).all(0))
    order = usable[np.argsort(ratios[1, usable])]
    groups: list[list[int]] = []
    for neuron in order:
        value = ratios[1, neuron]
        if groups and abs(value - ratios[1, groups[-1][-1]]) <= tolerance * abs(value):
            groups[-1].append(int(neuron))
        else:
            groups.append([int(neuron)])
    kept = [np.array(group) for group in groups if len(group) > 1]
    return kept, np.array([ratios[:, group[0]] for group in kept])


def _label(ratios: np.ndarray) -> int:
    """Algorithm 2: the one negative entry, or class 1 (whose sign the ratios hide)."""
    negative = np.flatnonzero(ratios < 0)
    return int(negative[0]) if len(negative) == 1 else 0


def _patterns(
    network: Propagation, groups: list[np.ndarray], losses: np.ndarray, labels: np.ndarray
) -> list[np.ndarray]:
    """Algorithm 3: masks (M, units) of each hidden layer, first layer first."""
    hidden = network.last
    if len(groups) == 1:
        return [(network.weight_gradients[i] != 0).any(1)[None] for i in range(hidden)]
    patterns: list[np.ndarray] = []
    exclusive = groups
    for index in range(hidden - 1, 0, -1):
        masks = np.array(
            [
                network.weight_gradients[index][own[0]] != 0
                if len(own)
                else np.zeros(network.weights[index].shape[1], bool)
                for own in exclusive
            ]
        )
        alone = masks.sum(0) == 1
        exclusive = [np.flatnonzero(mask & alone) for mask in masks]
        patterns.insert(0, masks)
    p = losses.copy()
    p[np.arange(len(labels)), labels] += 1
    last = np.zeros((len(groups), network.weights[-1].shape[1]), bool)
    for record, own in enumerate(groups):
        free = np.ones(last.shape[1], bool)
        for other in groups[:record] + groups[record + 1 :]:
            free[other] = False
        logits = np.log(np.maximum(p[record], 1e-30)) - network.biases[-1]
        # A constant of either sign may be added to all logits.
        ones = np.ones((len(logits), 1))
        solution, _ = nnls(np.hstack([network.weights[-1][:, free], ones, -ones]), logits)
        last[record, np.flatnonzero(free)] = solution[:-2] > 0
        last[record, own] = True
    return [*patterns, last]


def _signals(network: Propagation, patterns: list[np.ndarray], losses: np.ndarray) -> np.ndarray:
    """Δ (units, M): loss vectors sent back through the weights and patterns, Eq. 5."""
    signals = losses
    for index in range(network.last, 0, -1):
        signals = (signals @ network.weights[index]) * patterns[index - 1]
    return signals.T
