"""Certificate of recovered records, made without the secret.

**What it claims.** A certified candidate is within 1% (``LARGEST_ERROR``, relative in norm) of a
record of the batch, but for a probability of ``ERROR_PROBABILITY``. The record is the one that is
returned, with its normalisation undone: a dark picture is small where its normalised input is not.

**What it takes for granted.** The network, the loss (cross-entropy with one label each), the
normalisation, the batch size and the noise that were told are the client's own. Every other
condition is checked:

1. *Count.* The number of candidates is the rank of the first layer's gradient and the batch size
   that was told; told labels tell it too (``told_batch_size``), and hints that contradict each
   other or the candidates' labels leave no certificate (``Recovered.contradicted``). Equal,
   collinear and silent records lower the rank; then other batches may have the same gradient and
   nothing is certified. Where the batch size was not told the rank is taken for it, and attacks
   drop the certificate (``Recovered.uncounted``): two records of one label whose loss vectors agree
   to the gradient's precision (small records, large biases) have the gradient of their mean,
   whatever the residual says.
2. *No copies.* Candidates differ by more than their errors.
3. *Local uniqueness.* The Jacobian of the first layer's gradient by records and loss vectors has
   full column rank, and the first-order error bound of a record, the distance to the least-squares
   solution plus ``MARGIN`` deviations, what features without a gradient can hold and the rounding
   of the record's own format, is below ``LARGEST_BOUND`` of its norm (``error_bound``).
4. *Residual.* The gradients of all tensors, recomputed from the candidates, equal the release to
   its own precision (``precision``): rounding of its float format, or noise of a level that was
   told. Noise of unknown level, and pruned entries, leave no such precision, and nothing is
   certified.
5. *Rows.* Each neuron of the first layer is active for a record or silent, by the record (the sign
   of W₀x + b₀) and by the gradient (its derivative is nearer to what the next layer sends back than
   to zero). A wrong record agrees with at most even odds, so d disagreements on m rows have the
   binomial probability P(Bin(m, 1/2) ≤ d), m being the rows that are clear of noise less the
   b + k − 1 parameters of the fit. This times the number of hypotheses tried is the error
   probability, to be below ``ERROR_PROBABILITY``.

A partial answer is never certified: conditions 1 and 4 are about the whole batch.

**Confidence** of a certified record is one minus the error probability of condition 5, at most
``HIGHEST``; of any other candidate half the share of agreeing rows, hence at most one half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.stats import binom

from vestige.attacks.exact_inversion.error_bound import (
    Step,
    gauss_newton_step,
    length_deviation,
    length_step,
)
from vestige.attacks.exact_inversion.mask_agreement import THRESHOLD
from vestige.attacks.exact_inversion.precision import compare_gradients, compute_roundoff

if TYPE_CHECKING:
    from vestige.attacks.exact_inversion.propagation import Propagation
    from vestige.attacks.exact_inversion.reading import Reading

LARGEST_ERROR = 0.01
LARGEST_BOUND = 0.004
"""Error bound that is allowed, relative to the record; below the claim, being of first order."""
MARGIN = 4.0
ERROR_PROBABILITY = 0.01
HIGHEST = 0.999
"""Confidence of a certified record at most: what is taken for granted is not certain."""
UNCERTIFIED = 0.5
"""Share of its agreement that is the confidence of a candidate without a certificate."""
ROUNDING_LIMIT = 10.0
"""Misfit in deviations that rounding may have: its model is good to a factor, and the error of one
loss vector repeats in all entries of a layer. Right records of networks trained for 2,000 steps
reached 6.5; wrong ones miss by thousands."""
NOISE_UNITS = 6.0
"""A sent value of so many deviations of its row tells active from silent."""
ROUNDS = 4
IN_RANGE = 1e140
"""Norms above this, and below its inverse, have squares outside the range of float64."""
FIRST_GUESS = 1e-6
"""Relative error of a record by which a neuron's sign may be open, at least."""


@dataclass(frozen=True)
class Certificate:
    """certified (b,), confidence (b,) and error bounds (b,), and why records are not certified."""

    certified: np.ndarray
    confidence: np.ndarray
    bounds: np.ndarray
    reason: str

    @classmethod
    def none(cls, evidence: np.ndarray, reason: str) -> Certificate:
        """No record is certified."""
        count = len(evidence)
        weak = UNCERTIFIED * np.clip(np.nan_to_num(evidence), 0, 1)
        return cls(np.zeros(count, bool), weak, np.full(count, np.inf), reason)


def certify(
    network: Propagation,
    reading: Reading,
    x: np.ndarray,
    labels: np.ndarray,
    *,
    batch_size: int | None,
    hypotheses: int = 1,
    evidence: np.ndarray,
) -> Certificate:
    """Certify candidates x (b, D) with labels (b,), all that were found of a batch.

    ``batch_size`` is the one that was told; ``hypotheses`` counts the answers that were tried;
    ``evidence`` (b,) is the share of agreeing rows, by which candidates without a certificate are
    ranked.
    """
    reason = uncertifiable(reading, batch_size) or _miscounted(reading, x, labels)
    if reason:
        return Certificate.none(evidence, reason)
    divisor = 1.0 if network.head.summed else float(len(x))
    solution = _solution(network, reading, x, labels, divisor)
    if solution is None:
        return Certificate.none(evidence, "Other records explain the gradient as well.")
    exact, step, open_signs = solution
    size = np.maximum(np.linalg.norm(x, axis=1), 1e-300)
    misfit = max(1.0, step.misfit)
    deviation, record_deviation = step.deviation * misfit, step.record_deviation * misfit
    if not reading.with_bias:
        length = length_deviation(network, exact, labels, step, misfit)
        deviation = np.hypot(deviation, length * size)
        scaled = np.linalg.norm(x * network.record_scale, axis=1)
        record_deviation = np.hypot(record_deviation, length * scaled)
    errors = np.linalg.norm((exact - x) * network.record_scale, axis=1) + step.unseen
    bounds = _relative(network, x, errors + MARGIN * record_deviation)
    reason = _explained(network, reading, exact, labels, divisor, deviation, open_signs)
    if reason:
        return Certificate.none(evidence, reason)
    apart = np.linalg.norm(exact[:, None] - exact, axis=2) + np.diag(np.full(len(x), np.inf))
    copies = (apart <= MARGIN * (deviation[:, None] + deviation)).any(1)
    chance = hypotheses * _chances(network, reading, exact, labels, divisor, open_signs)
    certified = (bounds < LARGEST_BOUND) & ~copies & (chance < ERROR_PROBABILITY)
    confidence = np.where(
        certified, np.minimum(1 - chance, HIGHEST), UNCERTIFIED * np.clip(evidence, 0, 1)
    )
    reason = ""
    if not certified.all():
        few = (chance >= ERROR_PROBABILITY).any()
        reason = (
            "Too few neurons tell the record from a lucky one."
            if few
            else "The noise of the gradient leaves an error of more than 1%."
        )
    return Certificate(certified, confidence, bounds, reason)


def uncertifiable(reading: Reading, batch_size: int | None) -> str:
    """Why no answer to a release could be certified, or nothing."""
    rank = reading.factors.rank
    if reading.guessed:
        return "The gradient carries noise of unknown level."
    if reading.missing is not None:
        return "Entries of the gradient were pruned."
    if batch_size is not None and batch_size != rank:
        return f"The batch has {batch_size} records, and the gradient's rank is {rank}."
    most = min(len(reading.factors.rows), len(reading.factors.columns))
    if batch_size is None and rank == most:
        return "The gradient's rank is the most it can have: there may be more records."
    return ""


def agreeing(confidence: np.ndarray) -> bool:
    """Whether all candidates, certified or not, agree with the gradient in nearly all rows."""
    return len(confidence) > 0 and bool((confidence >= UNCERTIFIED * THRESHOLD).all())


def _relative(network: Propagation, x: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Errors (b,) of records and of their rounding, relative to the records' norms.

    Infinite for a record of zeros, and where a norm's square leaves the range of float64.
    """
    dtype = network.head.layers[0].weight.dtype
    limits = torch.finfo(dtype if dtype.is_floating_point else torch.float32)
    inner, shift = x * network.record_scale, network.record_shift
    size = np.linalg.norm(inner + shift, axis=1)
    rounding = limits.eps * size / 2
    rounding = rounding + limits.smallest_normal * limits.eps * np.sqrt(x.shape[1])
    if network.head.records is not None:
        # (x − mean)/std rounds twice, and so do its two constants.
        offset = np.linalg.norm(inner, axis=1) + np.linalg.norm(shift)
        rounding = rounding + 2 * limits.eps * offset
    measured = (size > 1 / IN_RANGE) & (size < min(limits.max, IN_RANGE))
    return np.where(measured, (errors + rounding) / np.where(measured, size, 1.0), np.inf)


def _miscounted(reading: Reading, x: np.ndarray, labels: np.ndarray) -> str:
    """Why these candidates are not one for each direction of the gradient, or nothing."""
    known = np.isfinite(x).all(1) & (labels >= 0)
    if len(x) == reading.factors.rank and known.all():
        return ""
    return f"{int(known.sum())} records were recovered where the rank is {reading.factors.rank}."


def _solution(
    network: Propagation, reading: Reading, x: np.ndarray, labels: np.ndarray, divisor: float
) -> tuple[np.ndarray, Step, np.ndarray] | None:
    """The least-squares records near x, the last step to them, and neurons at their kink (b, n)."""
    lengths = np.linalg.norm(network.weights[0], axis=1)
    size = np.linalg.norm(x, axis=1)
    # An error that is spread over D features changes a neuron by 1/√D of what Cauchy–Schwarz says.
    spread = min(1.0, 8 / np.sqrt(x.shape[1]))
    roundoff = compute_roundoff(network, reading.noise)
    current, step, open_signs = x, None, np.zeros((len(x), len(lengths)), bool)
    for _ in range(ROUNDS):
        deviation = FIRST_GUESS * size if step is None else MARGIN * step.deviation * spread
        tolerance = (deviation + 30 * roundoff * size)[:, None] * lengths
        hidden = network.hidden(current)
        open_signs = np.abs(hidden) <= tolerance + 30 * roundoff * np.abs(network.biases[0])
        step = gauss_newton_step(network, reading, current, ~open_signs.any(0))
        if step is None or not np.isfinite(step.deviation).all():
            return None
        current = current + step.change
        if not reading.with_bias:
            factor = length_step(network, current, labels, divisor * step.losses)
            current = current * factor[:, None]
            if (np.abs(factor - 1) > 1e-13).any():
                continue
        if (np.linalg.norm(step.change, axis=1) < 0.1 * step.deviation).all():
            break
    assert step is not None
    return current, step, open_signs


def _explained(
    network: Propagation,
    reading: Reading,
    x: np.ndarray,
    labels: np.ndarray,
    divisor: float,
    deviation: np.ndarray,
    open_signs: np.ndarray,
) -> str:
    """Why the recomputed gradient differs from the release, or nothing."""
    doubt = deviation / np.sqrt(x.shape[1])
    skipped = np.asarray(open_signs.any(0))
    comparison = compare_gradients(network, x, labels, divisor, reading.noise, doubt, skipped)
    limit = np.full(len(comparison.misfits), ROUNDING_LIMIT)
    if not isinstance(reading.noise, str):
        limit = 1 + 5 / np.sqrt(2 * np.maximum(comparison.sizes, 1))
    if (comparison.misfits <= limit).all():
        return ""
    worst = float(comparison.misfits.max())
    return f"The recomputed gradient differs from the release by {worst:.2g} of its deviations."


def _chances(
    network: Propagation,
    reading: Reading,
    x: np.ndarray,
    labels: np.ndarray,
    divisor: float,
    open_signs: np.ndarray,
) -> np.ndarray:
    """Probability (b,) that a wrong record agrees with the gradient in as many neurons."""
    full = np.hstack([x, np.ones((len(x), 1))]) if reading.with_bias else x
    factors = reading.factors
    weighted = full[:, factors.columns] / factors.column_scale
    inverse = np.linalg.pinv(weighted, rcond=1e-13)
    noise = np.zeros(factors.shape[0])
    noise[factors.rows] = factors.row_scale
    derivative = (reading.released[:, factors.columns] / factors.column_scale) @ inverse
    _, second = network.sent_back(x, labels)
    sent = (second @ network.weights[1]).T / divisor
    clear = np.abs(sent) > NOISE_UNITS * noise[:, None] * np.linalg.norm(inverse, axis=0)
    clear &= ~open_signs.T
    read = np.abs(derivative) > np.abs(derivative - sent)
    agree = read == (network.hidden(x).T > 0)
    parameters = len(x) + reading.bases[0].shape[1] - 1
    rows = np.maximum(clear.sum(0) - parameters, 0)
    wrong = (clear & ~agree).sum(0)
    return np.asarray(binom.cdf(wrong, rows, 0.5))
