"""Inversion by sampled silent neurons: exact, in time that grows exponentially with the batch.

Dimitrov, Baader, Müller and Vechev, "SPEAR: Exact Gradient Inversion of Batches in Federated
Learning" (2024). The gradient of the first layer is Δ·X/M and has rank b, the batch size; ReLU
makes the columns of Δ sparse. With any factors L·R of that rank Δ = L·Q, and a set of rows in
which one record is silent shows its column of Q.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from vestige.attacks.exact_inversion.certificate import agreeing, uncertifiable
from vestige.attacks.exact_inversion.gradient_equation import solve_again
from vestige.attacks.exact_inversion.layers import DenseHead, Recovered
from vestige.attacks.exact_inversion.lifted import Problem
from vestige.attacks.exact_inversion.mask_agreement import THRESHOLD
from vestige.attacks.exact_inversion.propagation import Propagation
from vestige.attacks.exact_inversion.reading import Reading, read
from vestige.attacks.exact_inversion.silent_directions import Directions
from vestige.progress import report

BLOCK = 256
"""Row sets drawn at once: large enough for batched linear algebra, small enough for a cache."""

FUTILE = 4
"""The search ends after one part in this many of its draws if nothing has shown by then. Had all b
records been within reach of the budget, each would show H_b times in it, H_b = 1 + 1/2 + … + 1/b,
and none of them in a quarter with probability e^(−b·H_b/4): 1% at b = 7, far less beyond."""


def expected_draws(batch: int, silent: float = 0.5) -> float:
    """Row sets until every record has shown, if each leaves this share of the live rows silent.

    A set of b rows shows a record if it is silent in all of them but one, so b·s^(b−1)·(1 − s) of
    all sets do; the last of b such records takes 1 + 1/2 + … + 1/b times as long as one.
    """
    if batch == 1:
        return 1.0
    chance = batch * silent ** (batch - 1) * (1 - silent)
    return float((1 / np.arange(1, batch + 1)).sum() / max(chance, 1e-300))


def silent_share(active: np.ndarray, batch: int) -> float:
    """Share of live neurons a record leaves silent, in batches of records with masks (n, units).

    A neuron is live if some record of the batch activates it. Half where there is no whole batch.
    """
    whole = active[: len(active) // batch * batch].reshape(-1, batch, active.shape[1])
    live = whole.any(1)
    if not live.any():
        return 0.5
    return float(1 - whole.sum() / (batch * live.sum()))


def sampling_inversion(
    head: DenseHead,
    *,
    generator: torch.Generator,
    most_samples: int = 20,
    draws: int = 400_000,
    silent: float = 0.5,
    batch_size: int | None = None,
    reading: Reading | None = None,
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
    - Records, labels and certificates follow from the directions as they do in the lift
      (``lifted.Problem``), so networks without biases are read too; SPEAR needs the bias gradient.

    Where fewer directions than records are found, no record can be told apart from the others'
    remainder: inputs are NaN. Where that is to be expected, nothing is drawn.

    ``most_samples`` is the largest batch that is tried: the expected number of draws doubles with
    each record. ``draws`` limits the row sets; a batch that is expected to need more is not tried.
    ``silent`` is the expected share of live neurons that a record leaves silent: half in an
    untrained network. Without that many records as ``batch_size`` says, none is certified.
    """
    if len(head.layers) < 2:
        return Recovered.nothing(head, 1, "There is no hidden layer, so no neuron is silent.")
    reading = read(head, None, batch_size) if reading is None else reading
    batch = reading.factors.rank
    reason = _hopeless(reading, most_samples, draws, silent)
    if reason:
        return Recovered.nothing(head, batch, reason)
    problem = Problem(Propagation(head), reading, batch_size, None, np.random.default_rng(0))
    directions = Directions(reading.factors.left, problem.outgoing(reading.bases[0]))
    best: Recovered | None = None
    tried, hopeless = 0, bool(uncertifiable(reading, batch_size))
    for _ in _searched(directions, generator, draws):
        if len(directions.independent()) == batch:
            tried += 1
            exchanged = _exchanged(problem, directions)
            result = problem.answer(exchanged, refine=reading.coarse, hypotheses=tried)
            if best is None or result.certified.sum() > best.certified.sum():
                best = result
            if best.certified.all() or (hopeless and agreeing(best.certificate.numpy())):
                break
    if best is None:
        shown = len(directions.independent())
        return Recovered.nothing(head, batch, f"Sampling found {shown} of {batch} directions.")
    if best.certified.all() and not reading.coarse:
        # The equation of the whole layer gives the last digits back that a polish by masks leaves.
        inputs, _ = solve_again(problem.network, best.inputs.numpy(), best.labels.numpy())
        sharper = problem.answer(inputs, refine=False, hypotheses=tried)
        best = sharper if sharper.certified.all() else best
    return best


def _hopeless(reading: Reading, most_samples: int, draws: int, silent: float) -> str:
    """Say why no search is worth its time, or nothing."""
    batch, live = reading.factors.rank, len(reading.factors.rows)
    if batch == 0:
        return "The first layer's gradient is zero."
    if batch > most_samples:
        return f"The rank says {batch} records, more than the {most_samples} that are sampled for."
    if batch > 1 and live < 2 * batch:
        return (
            f"Sampling {batch} records needs {2 * batch} live neurons in the first layer, and "
            f"{live} are live."
        )
    expected = expected_draws(batch, silent)
    if expected > draws:
        return (
            f"Sampling {batch} records takes about {expected:,.0f} draws where a record leaves "
            f"{silent:.0%} of the neurons silent, and {draws:,} are allowed."
        )
    return ""


def _searched(found: Directions, generator: torch.Generator, draws: int) -> Iterator[None]:
    """Draw row sets within the budget; come back whenever there is a new direction."""
    n, batch = found.left.shape
    if batch == 1:
        found.add(np.ones((1, 1)))
        yield
        return
    blocks = -(-draws // BLOCK)
    for block in range(blocks):
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
        if not found.kept and block + 1 >= blocks / FUTILE:
            return
        if found.budget is not None and found.budget.ended:
            return


def _pool(directions: Directions, block: int, generator: torch.Generator) -> torch.Tensor:
    """Rows to draw sets from, in random order: in three of four blocks a part of them.

    Records are silent in the same neurons more often than by chance. Rows in which the records
    found so far are silent are therefore drawn first, the more strictly the later in a cycle of
    four blocks; the first block of a cycle takes all rows.
    """
    n, batch = directions.left.shape
    strictness = block % 4
    if strictness == 0 or not directions.kept:
        return torch.randperm(n, generator=generator)
    silent = torch.from_numpy(directions.silent_share())
    keys = -torch.log(-torch.log(torch.rand(n, generator=generator, dtype=torch.float64)))
    keys = keys + 2.0 * strictness * torch.log(silent + 0.1)
    count = max(2 * batch, n // 2)
    pool = torch.argsort(keys, descending=True)[:count]
    return pool[torch.randperm(len(pool), generator=generator)]


def _exchanged(problem: Problem, found: Directions) -> np.ndarray:
    """Inputs (b, D) of the sparsest directions; others take the place of one that agrees least.

    That is SPEAR's greedy choice by λ, the agreement of masks, with single exchanges.
    """
    chosen = found.independent()

    def inputs(directions: np.ndarray, *, lengths: bool) -> np.ndarray:
        divisions = [~found.silenced(q) for q in directions]
        with np.errstate(all="ignore"):
            return problem.unmixed(problem.reading.bases[0], divisions, lengths=lengths)

    best = problem.agreement(inputs(chosen, lengths=False))
    for candidate in found.kept[: 3 * len(chosen)]:
        if best.min() >= THRESHOLD:
            break
        trial = chosen.copy()
        trial[int(best.argmin())] = candidate
        if np.linalg.matrix_rank(trial, tol=1e-6) < len(trial):
            continue
        agreement = problem.agreement(inputs(trial, lengths=False))
        if agreement.mean() > best.mean():
            best, chosen = agreement, trial
    return inputs(chosen, lengths=True)
