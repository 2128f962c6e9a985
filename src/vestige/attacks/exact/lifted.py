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

import numpy as np
import torch

from vestige.attacks.exact.binary_rows import LARGEST_RANK, binary_rows, independent
from vestige.attacks.exact.certificate import THRESHOLD, Explained, certificates, explained
from vestige.attacks.exact.diagonalization import diagonalized
from vestige.attacks.exact.labels_and_scale import consensus, labelled, scaled
from vestige.attacks.exact.layers import DenseHead, Recovered
from vestige.attacks.exact.noise import Factors, Noise
from vestige.attacks.exact.null_space import null_space, unknowns
from vestige.attacks.exact.polish import division, polished
from vestige.attacks.exact.propagation import Propagation
from vestige.attacks.exact.reading import Reading, read
from vestige.attacks.exact.refinement import Known, refined
from vestige.errors import BadInput

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

    Parameters
    ----------
    head
        Two or more linear layers with ReLU between them, and their gradients.
    noise
        How exact the gradient is: a float precision, or the standard deviation of Gaussian noise.
        None finds out: the lowest precision that holds all values, or, where a gradient of low rank
        leaves more than that precision explains, constant noise of the level that is left.
    batch_size
        Number of records, if it is known; otherwise the rank of the gradient says it. Knowing it
        matters where the gradient is noisy or pruned.
    binary
        Whether inputs are zeros and ones; then masks need not differ between samples.
    bounds
        Lowest and highest value of an input, used where the gradient is noisy.
    reading
        What ``read`` made of the gradient, where that is known already.
    generator
        Where random combinations are drawn from.
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
    found = problem.lifted()
    if binary:
        return problem.answer(problem.rounded(found), refine=False)
    answer = problem.answer(found, refine=reading.coarse)
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
        best, kept = -1.0, np.zeros((0, len(self.network.weights[0][0])))
        for _ in range(ATTEMPTS):
            for basis in self.reading.bases:
                found, agreement = self._attempted(basis)
                if agreement.sum() > best:
                    best, kept = float(agreement.sum()), found
                if agreement.min() >= THRESHOLD:
                    return found
        return kept

    def certified_best(self, answer: Recovered) -> Recovered:
        """The best of further starts by their certificates, while a record is without one."""
        for _ in range(STARTS - 1):
            if bool(answer.certified.all()):
                break
            again = self.answer(self.lifted(), refine=True)
            if float(again.certificate.sum()) > float(answer.certificate.sum()):
                answer = again
        return answer

    def _attempted(self, basis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs (b, D) by null space, diagonalisation and polish, and their agreement (b,)."""
        left, outgoing = self.factors.left, self.outgoing(basis)
        z, y, _ = null_space(left, outgoing, self.random)
        q, gamma = diagonalized(left, outgoing, z, y, self.random)
        divisions = [division(left, outgoing, *pair) for pair in zip(q.T, gamma.T)]
        found = self.unmixed(basis, divisions)
        return found, self.agreement(found)

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
        samples = [polished(left, outgoing, active) for active in divisions]
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
        factor, _ = scaled(self.network, directions, sent, divisors=(float(len(directions)), 1.0))
        return directions * factor[:, None]

    def enumerated(self) -> np.ndarray:
        """Binary inputs of the gradient's row space, those its derivatives agree with first."""
        bias = self.factors.shape[1] - 1 if self.reading.with_bias else None
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

    def answer(self, x: np.ndarray, *, refine: bool) -> Recovered:
        """Labels, refinement where entries are coarse, and the certificate."""
        head = self.network.head
        finite = np.isfinite(x).all(1) & (np.abs(x).max(1, initial=0) < 1e100)
        if not finite.any():
            reason = "No record of the batch could be separated."
            return Recovered.nothing(head, self.factors.rank, reason)
        x = x[finite]
        final = self._explained(x)
        found = labelled(self.network, x, final.sent)
        if refine:
            x = self._refined(x, found.labels, found.divisor, found.agreement)
            final = self._explained(x)
            found = labelled(self.network, x, final.sent)
        doubt = self.reading.doubt
        final = replace(final, error=final.error + self._unseen(x, final.sent) / doubt**2)
        certificate = certificates(final, found.agreement, x, doubt)
        certificate[self._open_length(x)] = 0
        return self._reported(x, found.labels, certificate)

    def _unseen(self, x: np.ndarray, sent: np.ndarray) -> np.ndarray:
        """Mean squared error (b,) of inputs whose whole column was pruned and which count as zero.

        Such an input times the largest derivative of its record was below the edge of pruning.
        """
        if self.reading.edge is None:
            return np.zeros(len(x))
        inputs = self.factors.shape[1] - int(self.reading.with_bias)
        unseen = 1 - (self.factors.columns < inputs).sum() / inputs
        active = self.network.hidden(x) > 0
        largest = np.abs((sent @ self.network.weights[1]) * active).max(1)
        limit = float(self.reading.edge[:, :inputs].max(initial=0.0))
        return unseen * np.square(limit / np.maximum(largest, 1e-300)) / 3

    def _open_length(self, x: np.ndarray) -> np.ndarray:
        """Which inputs (b, D) could be longer or shorter and explain the gradient as well (b,).

        Two classes and no bias leave one equation for a length, 1 − p(s·u) = c/s, which has two
        solutions; a record of zeros and ones has no other length.
        """
        open_length = not self.reading.with_bias and self.network.classes < 3
        return np.logical_and(open_length, ~np.isin(x, (0.0, 1.0)).all(1))

    def _refined(
        self,
        x: np.ndarray,
        labels: np.ndarray,
        divisors: np.ndarray,
        trust: np.ndarray,
    ) -> np.ndarray:
        reading = self.reading
        divisor = float(self.batch_size or consensus(divisors, trust))
        weight = np.zeros(self.factors.shape[0])
        weight[self.factors.rows] = 1 / self.factors.row_scale
        known = Known(reading.released, weight, reading.missing, reading.edge)
        return refined(
            self.network,
            known,
            x,
            labels,
            divisor,
            with_bias=reading.with_bias,
            bounds=self.bounds,
        )

    def _explained(self, x: np.ndarray) -> Explained:
        ones = np.ones(len(x)) if self.reading.with_bias else None
        basis = self.reading.bases[0]
        return explained(self.network, self.factors, self.outgoing(basis), basis, x, ones)

    def _reported(self, x: np.ndarray, labels: np.ndarray, certificate: np.ndarray) -> Recovered:
        rank = self.factors.rank
        count = len(x)
        answer = Recovered.nothing(self.network.head, max(rank, count), "")
        answer.inputs[:count] = torch.from_numpy(x)
        answer.labels[:count] = torch.from_numpy(labels.astype(np.int64))
        answer.certificate[:count] = torch.from_numpy(certificate)
        answer.certified[:] = answer.certificate >= THRESHOLD
        certain = int(answer.certified.sum())
        if certain == rank:
            return answer
        reason = f"Only {certain} of {rank} records pass the certificate."
        if self._open_length(x).any():
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
