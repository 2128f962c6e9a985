"""Inversion by exclusively activated neurons.

Pan, Zhang, Yan, Zhu and Yang, "Theory-Oriented Deep Leakage from Gradients via Linear Equation
Solver" (2020): neurons that one record alone activates give away its loss vector and label
(Algorithms 1 and 2) and its activation pattern (Algorithm 3); with these the gradient equation is
linear in the records (Eq. 5).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from vestige.attacks.exact import noise
from vestige.attacks.exact.exclusive_literal import literal_inversion
from vestige.attacks.exact.exclusive_neurons import condition_holds, hidden_masks
from vestige.attacks.exact.gradient_equation import resolved, solved_despite_outliers
from vestige.attacks.exact.layers import DenseHead, Recovered
from vestige.attacks.exact.peeling import ACCEPTABLE, Peeled, cleaned, peel
from vestige.attacks.exact.propagation import Propagation, loss_vectors

CERTAIN = 0.99
"""Certificate above which a record counts as certified: exact batches reach 0.9999 in float32,
wrong ones stay below 0.9."""


@dataclass(frozen=True)
class RecoveredExclusively(Recovered):
    """Recovered records, and what the gradient showed about the exclusivity condition.

    ``condition_held`` is True or False where the whole batch was recovered, and None where the
    gradient does not tell; ``residual`` is the relative distance of the recomputed gradient of the
    whole batch (NaN where it was not recovered); ``rounds`` counts how often certified records had
    to be subtracted before others showed.
    """

    condition_held: bool | None = field(default=None, kw_only=True)
    residual: float = field(default=float("nan"), kw_only=True)
    rounds: int = field(default=0, kw_only=True)


def exclusive_inversion(
    head: DenseHead, *, literal: bool = False, generator: torch.Generator
) -> RecoveredExclusively:
    """Recover records, labels and the batch size from one gradient of a ReLU network.

    Where we deviate from the paper, and ``literal=True`` does not:

    - A neuron is found to be exclusive by its own equations (``peeling``), not by a second one
      whose ratio to row 1 repeats: row 1 may be zero, equal ratios need rounding, and a record
      with one exclusive neuron would be lost.
    - The length of a loss vector follows from softmax (``labels_and_scale``), or from the bias
      gradient; the paper guesses ḡ₁ = 2δ/3, which makes records of an untrained network 1.35 times
      too large.
    - The pattern of the last hidden layer follows from the input that the exclusive row shows.
      Algorithm 3 solves softmax(W·f) = p for it: K equations for d ≫ K unknowns.
    - Certified records are subtracted, so that neurons they share with one other become exclusive.
    - Below the last hidden layer no exclusive neurons are needed: with every loss vector and
      pattern above known, the gradient equation of a layer is linear in what entered it. (So the
      condition of Proposition 2 is not necessary.)
    - Eq. 5 is solved layer by layer (``gradient_equation``), where it separates into systems of M
      unknowns, one for each input: dense least squares where that is small, LSMR where it is large.

    A batch with equal records returns them as often as they occur. ``generator`` is unused: the
    method is deterministic.
    """
    del generator
    network = Propagation(head)
    if network.last == 0:
        return RecoveredExclusively.nothing(
            head, 1, "There is no hidden layer, so there are no neurons to compare."
        )
    # Rows that show no record alone give nonsense on the way to being rejected.
    with np.errstate(all="ignore"):
        return _literal(network, head) if literal else _robust(network, head)


def _robust(network: Propagation, head: DenseHead) -> RecoveredExclusively:
    """Peel records off the last two layers, then go down to the inputs."""
    roundoff, _ = noise.ROUNDING[
        noise.detected_precision(*(layer.weight_gradient for layer in head.layers))
    ]
    found = peel(network, roundoff)
    if not len(found.labels):
        few = network.classes < 3 and not network.biased[network.last - 1]
        reason = (
            "Two classes and no biases leave the length of the records open."
            if few
            else "No neuron of the last hidden layer shows a single record alone."
        )
        return RecoveredExclusively.nothing(head, _rank(network, roundoff), reason)
    batch = max(round(1 / found.shares.min()), 1)
    copies = np.maximum(np.round(found.shares * batch).astype(int), 1)
    order = np.repeat(np.arange(len(copies)), copies)
    rounds = int(found.rounds.max())
    if len(order) == batch:
        inputs = _inputs(network, found, roundoff, whole=True)[order]
        certified = _certified_batch(network, inputs, found.labels[order], rounds)
        if certified is not None:
            return certified
    return _partial(_inputs(network, found, roundoff, whole=False)[order], found, order, batch)


def _inputs(network: Propagation, found: Peeled, roundoff: float, *, whole: bool) -> np.ndarray:
    """Go down from what entered the last hidden layer to the records, NaN where it fails."""
    current = found.activations
    for index in range(network.last - 2, -1, -1):
        if whole:
            activations = network.forward(current, index + 1)
            signals = network.backward(activations, loss_vectors(activations[-1], found.labels))[0]
            # The signals at the outputs of layer index pass the mask of what it put out.
            signals = (signals @ network.weights[index + 1]) * (current > 0)
            live = network.weight_gradients[index].any(1)
            below = solved_despite_outliers(
                (signals * found.shares[:, None]).T[live], network.weight_gradients[index][live]
            )
        else:
            below = np.stack([_row_below(network, index, a, roundoff) for a in current])
        current = cleaned(below, roundoff) if index else below
    return current


def _row_below(network: Propagation, index: int, above: np.ndarray, roundoff: float) -> np.ndarray:
    """What entered layer ``index`` of one record, from a row that this record alone activates.

    Any row of an active neuron is tried; the right one is known by giving ``above`` again.
    """
    rows = np.flatnonzero(above > 0)
    row = network.weight_gradients[index][rows]
    if network.biased[index]:
        tried = row / network.bias_gradients[index][rows, None]
        reached = np.maximum(tried @ network.weights[index].T + network.biases[index], 0)
    else:
        tried = row / np.linalg.norm(row, axis=1, keepdims=True)
        tried = tried * np.sign((tried * network.weights[index][rows]).sum(1))[:, None]
        reached = np.maximum(tried @ network.weights[index].T, 0)
        length = (reached @ above) / (reached**2).sum(1)
        tried, reached = tried * length[:, None], reached * length[:, None]
    off = np.linalg.norm(reached - above, axis=1) / np.linalg.norm(above)
    off = np.where(np.isfinite(off), off, np.inf)
    if not len(off) or off.min() > max(ACCEPTABLE * roundoff, 1e-6):
        return np.full(network.weights[index].shape[1], np.nan)
    return tried[int(off.argmin())]


def _certified_batch(
    network: Propagation, inputs: np.ndarray, labels: np.ndarray, rounds: int
) -> RecoveredExclusively | None:
    """Polish a whole batch and certify it by its recomputed gradient and masks, if they agree."""
    if not np.isfinite(inputs).all():
        return None
    inputs, residual = resolved(network, inputs, labels)
    value = max(0.0, 1 - residual) * mask_agreement(network, inputs)
    if not value > CERTAIN:
        return None
    return RecoveredExclusively(
        torch.from_numpy(inputs),
        torch.from_numpy(labels),
        torch.full((len(labels),), value, dtype=torch.float64),
        torch.ones(len(labels), dtype=torch.bool),
        condition_held=condition_holds(hidden_masks(network, inputs)),
        residual=residual,
        rounds=rounds,
    )


def mask_agreement(network: Propagation, inputs: np.ndarray) -> float:
    """Share of first-layer neurons that the batch activates if and only if they have a gradient."""
    reached = (inputs @ network.weights[0].T + network.biases[0] > 0).any(0)
    return float((reached == (network.weight_gradients[0] != 0).any(1)).mean())


def _partial(
    inputs: np.ndarray, found: Peeled, order: np.ndarray, batch: int
) -> RecoveredExclusively:
    """Return the records found and NaN for those that no neuron shows.

    A batch that is complete and still does not give the gradient has a wrong record in it. Rows
    that nothing was subtracted from are the sounder evidence: only their records stay certified.
    """
    missing = batch - len(order)
    known = np.isfinite(inputs).all(1)
    value = np.where(known, np.clip(1 - found.misfits[order], 0, 1), 0.0)
    blank = np.full((missing, inputs.shape[1]), np.nan)
    shown = int(known.sum())
    certain = (value > CERTAIN) & ((shown < batch) | (found.rounds[order] == 0))
    return RecoveredExclusively(
        torch.from_numpy(np.vstack([inputs, blank])),
        torch.from_numpy(np.concatenate([found.labels[order], np.full(missing, -1)])),
        torch.from_numpy(np.concatenate([value, np.zeros(missing)])),
        torch.from_numpy(np.concatenate([certain, np.zeros(missing, bool)])),
        f"Neurons show {shown} of {batch} records alone, also after those are subtracted."
        if shown < batch
        else "The gradient of the records found, together, differs from the released one.",
        condition_held=False if missing else None,
        rounds=int(found.rounds.max()),
    )


def _literal(network: Propagation, head: DenseHead) -> RecoveredExclusively:
    """Run the method as it is printed, and certify the outcome as any other."""
    inputs, labels = literal_inversion(network, head.layers[-1].weight_gradient.dtype)
    if not len(labels):
        return RecoveredExclusively.nothing(
            head, 1, "No ratio of the last layer's gradient occurs twice."
        )
    residual = network.residual(inputs, labels)
    value = max(0.0, 1 - residual) * mask_agreement(network, inputs)
    return RecoveredExclusively(
        torch.from_numpy(inputs),
        torch.from_numpy(labels),
        torch.full((len(labels),), value, dtype=torch.float64),
        torch.full((len(labels),), value > CERTAIN),
        "" if value > CERTAIN else f"The recomputed gradient differs by {residual:.1%}.",
        residual=residual,
    )


def _rank(network: Propagation, roundoff: float) -> int:
    """Rank of the first layer's gradient: the batch size where no record gives it away."""
    values = np.linalg.svd(network.weight_gradients[0], compute_uv=False)
    return max(int((values > 100 * roundoff * values.max(initial=0)).sum()), 1)
