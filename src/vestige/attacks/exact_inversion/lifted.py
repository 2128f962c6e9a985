"""Lifted exact inversion of a ReLU layer: every record of a batch from one averaged gradient.

The gradient of the first fully connected layer is [∂W | ∂b] = Δ·[X 1]/M. Its rank is the batch
size and the columns of Δ are sparse, because silent neurons pass nothing back (Dimitrov et al.
2024, "SPEAR: Exact Gradient Inversion of Batches in Federated Learning"). SPEAR samples sets of
zeros; Pan et al. 2020, "Exploring the Security Boundary of Data Reconstruction via Neuron
Exclusivity Analysis", need neurons that one sample alone activates. The lift is Vestige's own
method and needs neither: for each sample's mixing column q and loss vector g at the next layer,
every neuron satisfies (L_r·q)·(L_r·q − w_r·g) = 0, linear in q·qᵀ and q·gᵀ; the null space holds
all samples at once. Time is polynomial, and only two adjacent layers enter, whatever the depth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from vestige.attacks.exact_inversion.binary_rows import LARGEST_RANK, binary_rows, independent
from vestige.attacks.exact_inversion.certificate import (
    UNCERTIFIED,
    agreeing,
    certify,
    uncertifiable,
)
from vestige.attacks.exact_inversion.labels_and_scale import consensus, find_scales, read_labels
from vestige.attacks.exact_inversion.layers import DenseHead, Recovered
from vestige.attacks.exact_inversion.lifted_equations import (
    diagonalize,
    division,
    null_space,
    polish_division,
    unknowns,
)
from vestige.attacks.exact_inversion.mask_agreement import THRESHOLD, Explained, fit_records
from vestige.attacks.exact_inversion.propagation import Propagation
from vestige.attacks.exact_inversion.reading import Reading, read
from vestige.attacks.exact_inversion.refinement import Known, refine
from vestige.errors import BadInput

if TYPE_CHECKING:
    from vestige.attacks.exact_inversion.noise import Factors, Noise

# Draws of random combinations before the best attempt is taken as it is.
ATTEMPTS = 2
# Under coarse rounding and noise some combinations separate records that others mix: of this many
# starts the one with most certificates is kept. On each of two bfloat16 batches that had failed,
# two of six starts mixed records.
STARTS = 6


def lift_feasible(head: DenseHead, batch: int) -> tuple[bool, int]:
    """Whether the lift can separate a batch of this size, and how many live neurons it needs.

    The lifted equations need b(b+1)/2 + b·min(b, d₂) − b neurons whose gradient is not zero.
    """
    _check(head)
    live = int((head.layers[0].weight_gradient.abs().amax(1) > 0).sum())
    needed = _needed(batch, len(head.layers[1].weight))
    return needed <= live, needed


def lifted_inversion(
    head: DenseHead,
    *,
    noise: Noise | None = None,
    batch_size: int | None = None,
    binary: bool = False,
    bounds: tuple[float, float] | None = None,
    reading: Reading | None = None,
    generator: torch.Generator,
) -> Recovered:
    """Recover the inputs of the first fully connected layer from its averaged gradient.

    ``noise`` is how exact the gradient is: a float precision, or the standard deviation of Gaussian
    noise. None estimates it: the lowest precision that holds all values, or, where a gradient of
    low rank leaves more than that precision explains, constant noise of the level that is left.
    ``batch_size`` is the number of records, if known; else the rank of the gradient. It matters
    where the gradient is noisy or pruned. With ``binary`` inputs masks need not differ between
    samples. ``bounds`` of an input are used where the gradient is noisy, ``reading`` is the output
    of ``read`` if it is known already.
    """
    _check(head)
    random = np.random.default_rng(
        int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
    )
    network = Propagation(head)
    reading = read(head, noise, batch_size) if reading is None else reading
    problem = Problem(network, reading, batch_size, bounds, random)
    if reading.factors.rank == 0:
        reason = "The gradient of the first layer is zero, or below its noise."
        return Recovered.nothing(head, 0, reason)
    if binary and reading.factors.rank <= LARGEST_RANK:
        return problem.answer(problem.enumerated(), refine=False)
    rank = reading.factors.rank
    live = len(reading.factors.rows)
    needed = _needed(rank, len(network.weights[1]))
    if needed > live:
        return Recovered.nothing(
            head,
            rank,
            f"The lifted equations of {rank} records need {needed} live neurons in the first "
            f"layer, and {live} are live.",
        )
    inputs = problem.lifted()
    if binary:
        return problem.answer(problem.rounded(inputs), refine=False)
    answer = problem.answer(inputs, refine=reading.coarse)
    if reading.coarse and reading.missing is None:
        return problem.certified_best(answer)
    return answer


@dataclass(frozen=True)
class Problem:
    """One gradient to invert: the network, the gradient's factors, and a stream of randomness."""

    network: Propagation
    reading: Reading
    batch_size: int | None
    bounds: tuple[float, float] | None
    random: np.random.Generator

    @property
    def factors(self) -> Factors:
        """The gradient's factors."""
        return self.reading.factors

    def outgoing(self, basis: np.ndarray) -> np.ndarray:
        """w̃ (rows, k): outgoing weights times the basis of loss vectors, in noise units."""
        weights = self.network.weights[1].T[self.factors.rows] @ basis
        return weights / self.factors.row_scale[:, None]

    def lifted(self) -> np.ndarray:
        """Inputs (b, D) of the attempt whose records agree best with the gradient's masks."""
        best, best_inputs = -1.0, np.zeros((0, len(self.network.weights[0][0])))
        for _ in range(ATTEMPTS):
            for basis in self.reading.bases:
                inputs, agreement = self._attempted(basis)
                if agreement.sum() > best:
                    best, best_inputs = float(agreement.sum()), inputs
                if agreement.min() >= THRESHOLD:
                    return inputs
        return best_inputs

    def certified_best(self, answer: Recovered) -> Recovered:
        """The best of further starts by their certificates, while a record is without one."""
        hopeless = bool(uncertifiable(self.reading, self.batch_size))
        for start in range(2, STARTS + 1):
            if bool(answer.certified.all()):
                break
            if hopeless and agreeing(answer.certificate.numpy()):
                break
            again = self.answer(self.lifted(), refine=True, hypotheses=start)
            if float(again.certificate.sum()) > float(answer.certificate.sum()):
                answer = again
        return answer

    def _attempted(self, basis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs (b, D) by null space, diagonalisation and polish, and their agreement (b,)."""
        left, outgoing = self.factors.left, self.outgoing(basis)
        z, y, _ = null_space(left, outgoing, self.random)
        q, gamma = diagonalize(left, outgoing, z, y, self.random)
        divisions = [division(left, outgoing, *pair) for pair in zip(q.T, gamma.T)]
        inputs = self.unmixed(basis, divisions)
        return inputs, self.agreement(inputs)

    def agreement(self, x: np.ndarray) -> np.ndarray:
        """How well the masks of inputs (b, D) agree with the gradient's (b,)."""
        return self._explained(np.nan_to_num(x)).agreement

    def unmixed(
        self, basis: np.ndarray, divisions: list[np.ndarray], *, lengths: bool = True
    ) -> np.ndarray:
        """Inputs (b, D) from polished mixing columns; without a bias, scaled by their labels.

        ``lengths=False`` leaves them at length one, which masks do not see.
        """
        left, outgoing = self.factors.left, self.outgoing(basis)
        samples = [polish_division(left, outgoing, active) for active in divisions]
        mixing = np.stack([sample.q for sample in samples], 1)
        full = np.zeros((self.factors.rank, self.factors.shape[1]))
        full[:, self.factors.columns] = (
            np.linalg.pinv(mixing, rcond=1e-14) @ self.factors.right * self.factors.column_scale
        )
        if self.reading.with_bias:
            last = full[:, -1:]
            return full[:, :-1] / np.where(last == 0, np.nan, last)
        directions = full / np.linalg.norm(full, axis=1, keepdims=True)
        positive = self.network.hidden(directions)[:, self.factors.rows] > 0
        agree = (positive == np.stack([sample.active for sample in samples])).mean(1)
        directions *= np.where(agree < 0.5, -1.0, 1.0)[:, None]
        return self._lengthened(directions) if lengths else directions

    def _lengthened(self, directions: np.ndarray) -> np.ndarray:
        """Give directions (b, D) their length by softmax consistency."""
        sent = self._explained(directions).sent
        factor, _ = find_scales(
            self.network, directions, sent, divisors=(float(len(directions)), 1.0)
        )
        return directions * factor[:, None]

    def enumerated(self) -> np.ndarray:
        """Binary inputs of the gradient's row space, those its derivatives agree with first."""
        bias = self.factors.shape[1] - 1 if self.reading.with_bias else None
        if bias is not None and bias not in self.factors.columns:
            return np.zeros((0, bias))
        rows = binary_rows(self.factors, bias)
        rank = self.factors.rank
        chosen = independent(rows, rank, self.reading.with_bias)
        if len(rows) <= rank or len(chosen) < rank:
            return rows[chosen]
        return self._best_of(rows, chosen)

    def _best_of(self, rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Exchange single rows while that raises the agreement with the masks."""
        best = self._explained(rows[chosen]).agreement
        for spare in range(min(len(rows), 64)):
            if spare in chosen or best.min() >= THRESHOLD:
                continue
            for place in np.argsort(best)[:3]:
                trial = chosen.copy()
                trial[place] = spare
                if np.linalg.matrix_rank(rows[trial]) < len(trial):
                    continue
                agreement = self._explained(rows[trial]).agreement
                if agreement.sum() > best.sum():
                    chosen, best = trial, agreement
                    break
        return rows[chosen]

    def rounded(self, x: np.ndarray) -> np.ndarray:
        """Nearest binary inputs where the lift came near them."""
        near = np.clip(np.rint(x), 0, 1)
        return np.where((np.abs(x - near).max(1) < 0.45)[:, None], near, x)

    def answer(self, x: np.ndarray, *, refine: bool, hypotheses: int = 1) -> Recovered:
        """Labels, refinement where entries are coarse, and the certificate.

        ``hypotheses`` counts the answers that were tried before this one, and this one.
        """
        head = self.network.head
        finite = np.isfinite(x).all(1) & (np.abs(x).max(1, initial=0) < 1e100)
        if not finite.any():
            reason = "No record of the batch could be separated."
            return Recovered.nothing(head, self.factors.rank, reason)
        x = x[finite]
        final = self._explained(x)
        labelling = read_labels(self.network, x, final.sent)
        if refine:
            x = self._refined(x, labelling.labels, labelling.divisor, labelling.agreement)
            final = self._explained(x)
            labelling = read_labels(self.network, x, final.sent)
        weak = np.minimum(final.agreement, labelling.agreement)
        return self._reported(x, labelling.labels, weak, hypotheses)

    def _open_length(self, x: np.ndarray) -> np.ndarray:
        """Which inputs (b, D) could be longer or shorter and explain the gradient as well (b,).

        Two classes and no bias leave one equation for a length, 1 − p(s·u) = c/s, which has two
        solutions; a record of zeros and ones has no other length.
        """
        open_length = not self.reading.with_bias and self.network.classes < 3
        return np.logical_and(open_length, ~np.isin(x, (0.0, 1.0)).all(1))

    def _refined(
        self, x: np.ndarray, labels: np.ndarray, divisors: np.ndarray, trust: np.ndarray
    ) -> np.ndarray:
        reading = self.reading
        divisor = float(self.batch_size or consensus(divisors, trust))
        weight = np.zeros(self.factors.shape[0])
        weight[self.factors.rows] = 1 / self.factors.row_scale
        known = Known(reading.released, weight, reading.missing, reading.edge)
        return refine(
            self.network, known, x, labels, divisor, with_bias=reading.with_bias, bounds=self.bounds
        )

    def _explained(self, x: np.ndarray) -> Explained:
        ones = np.ones(len(x)) if self.reading.with_bias else None
        basis = self.reading.bases[0]
        return fit_records(self.network, self.factors, self.outgoing(basis), basis, x, ones)

    def _reported(
        self, x: np.ndarray, labels: np.ndarray, weak: np.ndarray, hypotheses: int
    ) -> Recovered:
        rank, count = self.factors.rank, len(x)
        labels = labels.astype(np.int64)
        open_length = self._open_length(x)
        certificate = certify(
            self.network,
            self.reading,
            x,
            labels,
            batch_size=self.batch_size,
            hypotheses=hypotheses,
            evidence=weak,
        )
        answer = Recovered.nothing(self.network.head, max(rank, count), "")
        answer.inputs[:count] = torch.from_numpy(x)
        answer.labels[:count] = torch.from_numpy(labels)
        answer.certificate[:count] = torch.from_numpy(
            np.where(open_length, UNCERTIFIED * weak, certificate.confidence)
        )
        answer.certified[:count] = torch.from_numpy(certificate.certified & ~open_length)
        certain = int(answer.certified.sum())
        if certain == rank:
            return answer
        reason = f"Only {certain} of {rank} records pass the certificate. {certificate.reason}"
        if open_length.any():
            reason = "Two classes and no biases leave the length of the records open."
        return replace(answer, reason=reason)


def _needed(batch: int, following: int) -> int:
    return unknowns(batch, min(batch, following)) - batch


def _check(head: DenseHead) -> None:
    if len(head.layers) < 2:
        raise BadInput(
            "The lift reads two adjacent fully connected layers with ReLU between them, and the "
            "head has one."
        )
