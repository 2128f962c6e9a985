"""Distance of a gradient recomputed from records to the release, in units of its precision.

The client's own forward and backward pass rounds at every step. The deviation of each entry follows
from a running error analysis (Higham 2002, "Accuracy and Stability of Numerical Algorithms",
Section 3.3), with variances in place of bounds, and the rounding or noise of the release on top.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vestige.attacks.exact_inversion.noise import ROUNDING, Noise, deviations
from vestige.attacks.exact_inversion.propagation import Propagation, loss_vectors

SUMS = 2.0
"""Roundoffs that a sum of products gathers, in units of the root of its terms' squares."""


@dataclass(frozen=True)
class Comparison:
    """Root mean squares (one per layer) of recomputed minus released entries over deviations.

    ``sizes`` counts the entries of each layer that were compared.
    """

    misfits: np.ndarray
    sizes: np.ndarray


def compute_roundoff(network: Propagation, noise: Noise) -> float:
    """Unit roundoff of the client's arithmetic: the parameters' own, float32 if values fit it."""
    dtype = network.head.layers[0].weight.dtype
    own = ROUNDING[str(dtype).removeprefix("torch.")][0] if dtype.is_floating_point else 2.0**-24
    if isinstance(noise, str) and noise == "float64":
        return own
    return max(own, ROUNDING["float32"][0])


def compare_gradients(
    network: Propagation,
    x: np.ndarray,
    labels: np.ndarray,
    divisor: float,
    noise: Noise,
    doubt: np.ndarray,
    skipped: np.ndarray,
) -> Comparison:
    """Compare all tensors' gradients of records x (b, D) with the release.

    ``doubt`` (b,) is the deviation of an entry of each record; ``skipped`` (units,) are neurons of
    the first layer at their kink, whose rows may be active or silent.
    """
    u = compute_roundoff(network, noise)
    activations, uncertain = _forward(network, x, doubt, u)
    signals, loose = _backward(network, activations, uncertain, labels, u)
    misfits, sizes = [], []
    for index, (signal, entering) in enumerate(zip(signals, activations)):
        var_s, var_a = loose[index], uncertain[index]
        model = [signal.T @ entering / divisor]
        squares = (signal**2).T @ (var_a + (SUMS * u * entering) ** 2) + var_s.T @ entering**2
        spread = [squares / divisor**2]
        wanted = [network.weight_gradients[index]]
        if network.biased[index]:
            model.append(signal.sum(0)[:, None] / divisor)
            spread.append((var_s + (SUMS * u * signal) ** 2).sum(0)[:, None] / divisor**2)
            wanted.append(network.bias_gradients[index][:, None])
        off, variance, released = (np.hstack(parts) for parts in (model, spread, wanted))
        if index == 0:
            off, variance, released = (part[~skipped] for part in (off, variance, released))
        variance = variance + deviations(released, noise) ** 2
        missed = np.square(off - released)
        share = np.where(missed > 0, missed / np.maximum(variance, 1e-300), 0.0)
        live = (released != 0) | (off != 0)
        misfits.append(np.sqrt(share[live].mean()) if live.any() else 0.0)
        sizes.append(int(live.sum()))
    return Comparison(np.array(misfits), np.array(sizes))


def _forward(
    network: Propagation, x: np.ndarray, doubt: np.ndarray, u: float
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Activations of all layers and their variances, from the records' own (b,)."""
    activations, variances = [x], [np.broadcast_to(doubt[:, None] ** 2, x.shape)]
    for index, (weight, bias) in enumerate(zip(network.weights, network.biases)):
        a, var = activations[-1], variances[-1]
        squared = weight.T**2
        out = a @ weight.T + bias
        spread = var @ squared + (SUMS * u) ** 2 * (a**2 @ squared + bias**2)
        if index < network.last:
            spread = spread * (out > 0)
            out = np.maximum(out, 0)
        activations.append(out)
        variances.append(spread)
    return activations, variances


def _backward(
    network: Propagation,
    activations: list[np.ndarray],
    variances: list[np.ndarray],
    labels: np.ndarray,
    u: float,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Derivatives by the outputs of each layer, and their variances."""
    losses = loss_vectors(activations[-1], labels)
    signals = network.backward(activations, losses)
    chance = np.abs(losses)
    slope = chance * (1 - np.minimum(chance, 1.0))
    # p − y rounds at the size of p; for the label's entry that is one, however small the loss.
    own = np.zeros_like(losses)
    if losses.shape[1] == 1:
        own[:] = 1.0
    else:
        own[np.arange(len(labels)), labels] = 1.0
    # The logarithm of a softmax rounds at the size of the largest logit.
    largest = np.abs(activations[-1]).max(1, keepdims=True)
    logits = variances[-1] + (SUMS * u * largest) ** 2
    mean = (chance**2 * logits).sum(1, keepdims=True)
    loose = slope**2 * logits + chance**2 * mean + (2 * u) ** 2 * np.maximum(own, chance**2)
    spreads = [loose]
    for index in range(network.last, 0, -1):
        squared = network.weights[index] ** 2
        down = spreads[0] @ squared + (SUMS * u) ** 2 * (signals[index] ** 2 @ squared)
        spreads.insert(0, down * (activations[index] > 0))
    return signals, spreads
