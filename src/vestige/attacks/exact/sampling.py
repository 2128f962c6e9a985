"""Inversion by sampled silent neurons: exact, in time that grows exponentially with the batch.

Dimitrov, Baader, Müller and Vechev, "SPEAR: Exact Gradient Inversion of Batches in Federated
Learning" (2024). The gradient of the first layer is Δ·X/M and has rank b, the batch size; ReLU
makes the columns of Δ sparse. With any factors L·R of that rank Δ = L·Q, and a set of rows in
which one record is silent shows its column of Q.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from vestige.attacks.exact import noise
from vestige.attacks.exact.chain import Chain, polished
from vestige.attacks.exact.layers import DenseHead, Recovered
from vestige.attacks.exact.scales import fitted
from vestige.attacks.exact.silent_directions import Directions
from vestige.progress import report

BLOCK = 256
"""Row sets drawn at once: large enough for batched linear algebra, small enough for a cache."""

AGREEING = 0.98
"""Share of a record's neurons whose sign must agree with its column of Δ: the λ of SPEAR's greedy
choice. Rounding leaves a neuron or two undecided; a wrong direction agrees on about half."""

CONSISTENT = 0.05
"""Largest sine between a column of Δ and what the record's own loss vector sends back."""


def sampling_inversion(
    head: DenseHead,
    *,
    generator: torch.Generator,
    most_samples: int = 20,
    draws: int = 400_000,
    seconds: float | None = None,
) -> Recovered:
    """Recover a batch from the gradient of the first layer and its rank.

    Where we deviate from SPEAR:

    - A set of b rows is drawn and inverted, which gives b directions at once, each zero in b − 1
      of the rows; SPEAR draws b − 1 rows for one null vector. The chance that a set shows a given
      record with half its neurons silent rises from 2^−(b−1) to b·2^−b at little more cost.
    - Rows in which the records found so far are silent are drawn more often: records of one kind
      share silent neurons, and every row less that is active counts exponentially.
    - A direction must also be what the layer above can send back (``Directions``), which mixtures
      of records are not; the greedy choice by λ is left with few candidates.
    - Zeros are counted in units of the gradient's rounding (``noise``), so float32 needs no tuned
      threshold, and a direction is kept only if the rows it silences leave no second direction.
    - Without biases the length of a record follows from softmax and the layers above (``scales``);
      SPEAR needs the bias gradient.

    Labels come from the loss vector that fits the record's column of Δ. Where fewer directions
    than records are found, no record can be told apart from the others' remainder: inputs are NaN.

    Parameters
    ----------
    head
        Layers and gradients; only the first layer's gradient is read.
    generator
        Draws the rows.
    most_samples
        Largest batch that is tried: the expected number of draws doubles with each record.
    draws
        Row sets drawn at most.
    seconds
        Time after which the search stops with what it has; the outcome then depends on the machine.
    """
    chain = Chain.of(head)
    first = head.layers[0]
    matrix = chain.weight_gradients[0]
    if chain.biased[0]:
        matrix = np.hstack([matrix, chain.bias_gradients[0][:, None]])
    kind = noise.detected_precision(first.weight_gradient)
    factors = noise.factored(matrix, kind)
    batch = factors.rank
    if chain.last == 0 or batch == 0 or batch > most_samples:
        reason = (
            "There is no hidden layer, so no neuron is silent."
            if chain.last == 0
            else "The first layer's gradient is zero."
            if batch == 0
            else f"The rank says {batch} records, more than the {most_samples} that are tried."
        )
        return _nothing(chain, batch, reason)
    directions = Directions(factors.left, _outgoing(chain, kind, factors))
    best = _Answer.none(chain, batch)
    for _ in _searched(directions, generator, draws, seconds):
        chosen = directions.independent()
        if len(chosen) == batch:
            best = max(best, _Answer.of(chain, factors, chosen), key=lambda one: one.score)
            best = _exchanged(chain, factors, directions, chosen, best)
            if best.certified.all():
                break
    if not np.isfinite(best.inputs).all():
        shown = len(directions.independent())
        return _nothing(chain, batch, f"Sampling found {shown} of {batch} directions.")
    return _certified(chain, best)


def _outgoing(chain: Chain, kind: noise.Noise, factors: noise.Factors) -> np.ndarray:
    """What the second layer can send back to each neuron (n, k), in units of the rows' noise.

    Signals at the second layer lie in the column space of its own gradient, so k ≤ b.
    """
    weight = chain.weights[1].T
    if factors.rank < weight.shape[1]:
        above = noise.factored(chain.weight_gradients[1], kind, rank=factors.rank)
        basis = np.zeros((weight.shape[1], above.rank))
        basis[above.rows] = np.linalg.qr(above.left * above.row_scale[:, None])[0]
        weight = weight @ basis
    return weight[factors.rows] / factors.row_scale[:, None]


def _searched(
    found: Directions, generator: torch.Generator, draws: int, seconds: float | None
) -> Iterator[None]:
    """Draw row sets within the budget; come back whenever there is a new direction."""
    n, batch = found.left.shape
    if batch == 1:
        found.add(np.ones((1, 1)))
        yield
        return
    started = time.monotonic()
    for block in range(-(-draws // BLOCK) if n >= 2 * batch else 0):
        known = len(found.kept)
        pool = _pool(found, block, generator)
        # One row of each of b strata: no row twice, at the price of one permutation per block.
        width = len(pool) // batch
        picks = torch.randint(width, (BLOCK, batch), generator=generator)
        sets = pool[picks + width * torch.arange(batch)]
        inverse, failed = torch.linalg.inv_ex(found.unit[sets])
        # Column k of an inverse is zero in all rows of the set but the k-th.
        directions = inverse[failed == 0].transpose(1, 2).reshape(-1, batch)
        probes = torch.randperm(n, generator=generator)[: Directions.PROBES]
        found.add(found.promising(directions, probes))
        if len(found.kept) > known:
            yield
        if report(len(found.independent()), batch):
            return
        if seconds is not None and time.monotonic() - started > seconds:
            return


def _pool(found: Directions, block: int, generator: torch.Generator) -> torch.Tensor:
    """Rows to draw sets from, in random order: in three of four blocks a part of them.

    Records are silent in the same neurons more often than by chance. Rows in which the records
    found so far are silent are therefore drawn first, the more strictly the later in a cycle of
    four blocks; the first block of a cycle takes all rows.
    """
    n, batch = found.left.shape
    strictness = block % 4
    if strictness == 0 or not found.kept:
        return torch.randperm(n, generator=generator)
    silent = torch.from_numpy(found.silent_share())
    keys = -torch.log(-torch.log(torch.rand(n, generator=generator, dtype=torch.float64)))
    keys = keys + 2.0 * strictness * torch.log(silent + 0.1)
    count = max(2 * batch, n // 2)
    pool = torch.argsort(keys, descending=True)[:count]
    return pool[torch.randperm(len(pool), generator=generator)]


@dataclass(frozen=True)
class _Answer:
    """Inputs (b, in), labels (b,), agreement of masks (b,) and misfit of the signals (b,)."""

    inputs: np.ndarray
    labels: np.ndarray
    agreement: np.ndarray
    misfits: np.ndarray

    @property
    def certified(self) -> np.ndarray:
        """Which records agree with their own masks and signals (b,)."""
        return (self.agreement > AGREEING) & (self.misfits < CONSISTENT)

    @property
    def score(self) -> float:
        """SPEAR's λ: how well the masks agree, over all records."""
        return float(self.agreement.mean())

    @classmethod
    def none(cls, chain: Chain, batch: int) -> _Answer:
        """Nothing recovered."""
        return cls(
            np.full((batch, chain.weights[0].shape[1]), np.nan),
            np.full(batch, -1),
            np.zeros(batch),
            np.ones(batch),
        )

    @classmethod
    def of(cls, chain: Chain, factors: noise.Factors, directions: np.ndarray) -> _Answer:
        """Undo the mixing: X = Q⁻¹·R, with each record's length from its bias entry or softmax."""
        mixed = np.zeros((len(directions), factors.shape[1]))
        mixed[:, factors.columns] = (
            np.linalg.solve(directions.T, factors.right) * factors.column_scale
        )
        signals = np.zeros((len(directions), factors.shape[0]))
        inner = factors.left @ directions.T
        silent = np.abs(inner) < [Directions.limit(column) for column in inner.T]
        signals[:, factors.rows] = np.where(silent, 0, inner * factors.row_scale[:, None]).T
        biased = chain.biased[0]
        scale = mixed[:, -1:] if biased else np.ones((len(directions), 1))
        with np.errstate(all="ignore"):
            inputs = (mixed[:, :-1] if biased else mixed) / scale
        inputs = np.nan_to_num(inputs, nan=0.0, posinf=0.0, neginf=0.0)
        signals = signals * scale
        reached = inputs @ chain.weights[0].T + chain.biases[0]
        if not biased:
            # Active neurons have positive inputs, which settles the sign.
            turn = np.sign((np.sign(reached) * (signals != 0)).sum(1, keepdims=True) + 0.5)
            inputs, reached, signals = inputs * turn, reached * turn, signals * turn
        agreement = ((reached > 0) == (signals != 0))[:, factors.rows].mean(1)
        labels, misfits = np.zeros(len(inputs), int), np.ones(len(inputs))
        for index in range(len(inputs)):
            activations = chain.forward(inputs[index : index + 1])
            logits = activations[-1][0]
            offset = np.zeros_like(logits) if biased else chain.biases[-1]
            length, labels[index], misfits[index] = fitted(
                logits - offset,
                offset,
                chain.outgoing(activations, 0),
                signals[index],
                known_length=biased,
            )
            inputs[index] *= length
        return cls(inputs, labels, agreement, misfits)


def _exchanged(
    chain: Chain, factors: noise.Factors, found: Directions, chosen: np.ndarray, best: _Answer
) -> _Answer:
    """Put other candidates in the place of the record that agrees least, while λ grows."""
    if best.certified.all():
        return best
    for candidate in found.kept[: 3 * len(chosen)]:
        trial = chosen.copy()
        trial[int(best.agreement.argmin())] = candidate
        if np.linalg.matrix_rank(trial, tol=1e-6) < len(trial):
            continue
        answer = _Answer.of(chain, factors, trial)
        if answer.score > best.score:
            best, chosen = answer, trial
    return best


def _certified(chain: Chain, answer: _Answer) -> Recovered:
    """Certify each record by its masks and by its own signal; polish if all pass."""
    certified = answer.certified
    inputs = answer.inputs
    if certified.all():
        inputs, _ = polished(chain, inputs, answer.labels)
    return Recovered(
        torch.from_numpy(inputs),
        torch.from_numpy(answer.labels),
        torch.from_numpy(answer.agreement * np.clip(1 - answer.misfits, 0, 1)),
        torch.from_numpy(certified),
        ""
        if certified.all()
        else f"{int(certified.sum())} of {len(certified)} records agree with their own masks.",
    )


def _nothing(chain: Chain, batch: int, reason: str) -> Recovered:
    return Recovered(
        torch.full((batch, chain.weights[0].shape[1]), float("nan")).double(),
        torch.full((batch,), -1),
        torch.zeros(batch).double(),
        torch.zeros(batch, dtype=torch.bool),
        reason,
    )
