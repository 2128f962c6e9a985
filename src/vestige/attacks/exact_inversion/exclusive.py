"""Inversion by exclusively activated neurons.

Pan, Zhang, Yan, Zhu and Yang, "Theory-Oriented Deep Leakage from Gradients via Linear Equation
Solver" (2020): neurons that one record alone activates give away its loss vector and label
(Algorithms 1 and 2) and its activation pattern (Algorithm 3); with these the gradient equation is
linear in the records (Eq. 5).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from scipy.optimize import nnls

from vestige.attacks.exact_inversion import noise
from vestige.attacks.exact_inversion.certificate import UNCERTIFIED, certify
from vestige.attacks.exact_inversion.exclusive_neurons import condition_holds, hidden_masks
from vestige.attacks.exact_inversion.gradient_equation import (
    least_squares_by_lsmr,
    solve_again,
    solve_robustly,
)
from vestige.attacks.exact_inversion.layers import DenseHead, Recovered
from vestige.attacks.exact_inversion.peeling import ACCEPTABLE, Peeled, clean_activations, peel
from vestige.attacks.exact_inversion.propagation import Propagation, loss_vectors
from vestige.attacks.exact_inversion.reading import Reading, read

ACCEPTED = 0.99
"""One minus the residual, times the agreement of masks, above which a batch counts as complete:
exact batches reach 0.9999 in float32, wrong ones stay below 0.9. That is no certificate."""

REPEATED = {torch.float64: 1e-10}
REPEATED_OTHERWISE = 1e-5


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
    head: DenseHead,
    *,
    literal: bool = False,
    batch_size: int | None = None,
    reading: Reading | None = None,
    generator: torch.Generator,
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

    A batch with equal records returns them as often as they occur, without a certificate, and so
    does one of which records are missing. ``batch_size`` is the number of records, if it is known,
    and ``reading`` what ``read`` made of the gradient; both enter the certificate alone.
    ``generator`` is unused: the method is deterministic.
    """
    del generator
    network = Propagation(head)
    if network.last == 0:
        return RecoveredExclusively.nothing(
            head, 1, "There is no hidden layer, so there are no neurons to compare."
        )
    # Rows that show no record alone give nonsense on the way to being rejected.
    with np.errstate(all="ignore"):
        result = _literal(network, head) if literal else _robust(network, head)
        if not bool(result.inputs.isfinite().all()) or not len(result.inputs):
            return result
        reading = read(head, None, batch_size) if reading is None else reading
        return _with_certificate(result, network, reading, batch_size)


def _with_certificate(
    result: RecoveredExclusively, network: Propagation, reading: Reading, batch_size: int | None
) -> RecoveredExclusively:
    """The answer with certificates, where all records of the batch were found."""
    made = certify(
        network,
        reading,
        result.inputs.numpy(),
        result.labels.numpy(),
        batch_size=batch_size,
        evidence=result.certificate.numpy() / UNCERTIFIED,
    )
    return replace(
        result,
        certificate=torch.from_numpy(made.confidence),
        certified=torch.from_numpy(made.certified),
        reason=result.reason or made.reason,
    )


def _robust(network: Propagation, head: DenseHead) -> RecoveredExclusively:
    """Peel records off the last two layers, then go down to the inputs."""
    roundoff, _ = noise.ROUNDING[
        noise.detected_precision(*(layer.weight_gradient for layer in head.layers))
    ]
    peeled = peel(network, roundoff)
    if not len(peeled.labels):
        few = network.classes < 3 and not network.biased[network.last - 1]
        reason = (
            "Two classes and no biases leave the length of the records open."
            if few
            else "No neuron of the last hidden layer shows a single record alone."
        )
        return RecoveredExclusively.nothing(head, _rank(network, roundoff), reason)
    batch = max(round(1 / peeled.shares.min()), 1)
    copies = np.maximum(np.round(peeled.shares * batch).astype(int), 1)
    order = np.repeat(np.arange(len(copies)), copies)
    rounds = int(peeled.rounds.max())
    if len(order) == batch:
        inputs = _inputs(network, peeled, roundoff, whole=True)[order]
        accepted = _accepted_batch(network, inputs, peeled.labels[order], rounds)
        if accepted is not None:
            return accepted
    return _partial(_inputs(network, peeled, roundoff, whole=False)[order], peeled, order, batch)


def _inputs(network: Propagation, peeled: Peeled, roundoff: float, *, whole: bool) -> np.ndarray:
    """Go down from what entered the last hidden layer to the records, NaN where it fails."""
    current = peeled.activations
    for index in range(network.last - 2, -1, -1):
        if whole:
            activations = network.forward(current, index + 1)
            signals = network.backward(activations, loss_vectors(activations[-1], peeled.labels))[0]
            # The signals at the outputs of layer index pass the mask of what it put out.
            signals = (signals @ network.weights[index + 1]) * (current > 0)
            live = network.weight_gradients[index].any(1)
            below = solve_robustly(
                (signals * peeled.shares[:, None]).T[live], network.weight_gradients[index][live]
            )
        else:
            below = np.stack([_row_below(network, index, a, roundoff) for a in current])
        current = clean_activations(below, roundoff) if index else below
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


def _accepted_batch(
    network: Propagation, inputs: np.ndarray, labels: np.ndarray, rounds: int
) -> RecoveredExclusively | None:
    """Polish a whole batch and accept it if its recomputed gradient and masks agree."""
    if not np.isfinite(inputs).all():
        return None
    inputs, residual = solve_again(network, inputs, labels)
    batch, accepted = _whole_batch(network, inputs, labels, residual)
    if not accepted:
        return None
    held = condition_holds(hidden_masks(network, inputs))
    return replace(batch, condition_held=held, rounds=rounds)


def _whole_batch(
    network: Propagation, inputs: np.ndarray, labels: np.ndarray, residual: float
) -> tuple[RecoveredExclusively, bool]:
    """A whole batch without certificates, and whether its gradient and masks agree."""
    value = max(0.0, 1 - residual) * mask_agreement(network, inputs)
    batch = RecoveredExclusively(
        torch.from_numpy(inputs),
        torch.from_numpy(labels),
        torch.full((len(labels),), UNCERTIFIED * value, dtype=torch.float64),
        torch.zeros(len(labels), dtype=torch.bool),
        residual=residual,
    )
    return batch, value > ACCEPTED


def mask_agreement(network: Propagation, inputs: np.ndarray) -> float:
    """Share of first-layer neurons that the batch activates if and only if they have a gradient."""
    reached = (network.hidden(inputs) > 0).any(0)
    return float((reached == (network.weight_gradients[0] != 0).any(1)).mean())


def _partial(
    inputs: np.ndarray, peeled: Peeled, order: np.ndarray, batch: int
) -> RecoveredExclusively:
    """Return the records found and NaN for those that no neuron shows; none is certified."""
    missing = batch - len(order)
    known = np.isfinite(inputs).all(1)
    value = np.where(known, UNCERTIFIED * np.clip(1 - peeled.misfits[order], 0, 1), 0.0)
    blank = np.full((missing, inputs.shape[1]), np.nan)
    shown = int(known.sum())
    return RecoveredExclusively(
        torch.from_numpy(np.vstack([inputs, blank])),
        torch.from_numpy(np.concatenate([peeled.labels[order], np.full(missing, -1)])),
        torch.from_numpy(np.concatenate([value, np.zeros(missing)])),
        torch.zeros(batch, dtype=torch.bool),
        f"Neurons show {shown} of {batch} records alone, also after those are subtracted."
        if shown < batch
        else "The gradient of the records found, together, differs from the released one.",
        condition_held=False if missing else None,
        rounds=int(peeled.rounds.max()),
    )


def _literal(network: Propagation, head: DenseHead) -> RecoveredExclusively:
    """Run the method as it is printed, and certify the outcome as any other."""
    inputs, labels = literal_inversion(network, head.layers[-1].weight_gradient.dtype)
    if not len(labels):
        return RecoveredExclusively.nothing(
            head, 1, "No ratio of the last layer's gradient occurs twice."
        )
    residual = network.residual(inputs, labels)
    batch, accepted = _whole_batch(network, inputs, labels, residual)
    reason = "" if accepted else f"The recomputed gradient differs by {residual:.1%}."
    return replace(batch, reason=reason)


def _rank(network: Propagation, roundoff: float) -> int:
    """Rank of the first layer's gradient: the batch size where no record gives it away."""
    values = np.linalg.svd(network.weight_gradients[0], compute_uv=False)
    return max(int((values > 100 * roundoff * values.max(initial=0)).sum()), 1)


def literal_inversion(network: Propagation, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (M, in) and labels (M,), M the number of groups of equal ratios.

    Algorithms 1 to 3 of Pan et al. 2020 as they are printed, to show what their steps do. Where the
    print cannot be followed, what was taken instead:

    - Algorithm 1, line 13 sets δ = ḡ₁/ḡ_Y, which is negative unless Y = 1; its absolute value is
      meant, so that |ḡ_Y| = 2/3 with ḡ_Y < 0.
    - "(r₂)_j is constant" is read up to 1e-5 in float32 and 1e-10 in float64.
    - Algorithm 3, lines 13 and 14 solve softmax(W·f) = p with unnamed "optimization techniques",
      for more unknowns than equations: here the non-negative least squares solution of
      W·f = log p + c, zero where another record is known to be alone.
    - With one record the patterns follow from Criterion 1 at every layer.
    """
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
    sets = [np.array(group) for group in groups if len(group) > 1]
    return sets, np.array([ratios[:, group[0]] for group in sets])


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
