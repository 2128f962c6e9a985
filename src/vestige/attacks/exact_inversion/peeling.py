"""Records read off the last two layers one after another, each subtracted once it is certain."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from vestige.attacks.exact_inversion.gradient_equation import solve_scaled
from vestige.attacks.exact_inversion.labels_and_scale import log_linear_scale
from vestige.attacks.exact_inversion.propagation import Propagation, loss_vectors

# Misfits in roundoffs. A float32 forward pass leaves some ten of them in the loss vector; a row
# that a second record touches misses by far more, unless that record's loss is tiny.
SURE, ACCEPTABLE = 300.0, 3e4
# Rows that subtraction left with less than this many times their rounding error say nothing.
CLEAR = 1e3
# How far a share may be from a whole number of 1/M.
WHOLE = 0.02
# Largest M that a share is taken for: a neuron with a smaller one shows no record.
LARGEST_BATCH = 10_000


@dataclass(frozen=True)
class Peeled:
    """What the last two layers told about each record found.

    activations (k, in) that enter the last hidden layer, labels (k,), shares (k,) of the averaged
    loss (1/M each), misfits (k,) of the softmax test, and in which round each was found (k,).
    """

    activations: np.ndarray
    labels: np.ndarray
    shares: np.ndarray
    misfits: np.ndarray
    rounds: np.ndarray

    def __getitem__(self, chosen: slice | list[int]) -> Peeled:
        return Peeled(*(values[chosen] for values in vars(self).values()))

    def __add__(self, other: Peeled) -> Peeled:
        pairs = zip(vars(self).values(), vars(other).values())
        return Peeled(*(np.concatenate(pair) for pair in pairs))


@dataclass(frozen=True)
class _Remainder:
    """What is left of a layer's gradient (rows), and the size of all that went into each row."""

    weight: np.ndarray
    bias: np.ndarray
    mass: np.ndarray

    @property
    def size(self) -> np.ndarray:
        """Length of each row."""
        return np.linalg.norm(self.weight, axis=1)


def peel(network: Propagation, roundoff: float) -> Peeled:
    """Find the records that some neuron of the last hidden layer sees alone; subtract; repeat.

    Pan et al. 2020 find such neurons by parallel columns of the last gradient (Algorithm 1), which
    takes two of them for every record. One is enough: if neuron j sees one record alone, row j of
    the layer's gradient is parallel to what entered it (divided by the bias gradient it is equal),
    column j of the next gradient is parallel to the record's loss vector, and the one must imply
    the other through softmax: K − 1 or more equations that a mixture of records does not meet.

    Certified records leave the gradient, which makes further neurons exclusive. This goes beyond
    the paper, whose condition asks for exclusive neurons in the whole batch at once.
    """
    width = network.weights[network.last - 1].shape[1]
    nothing = np.zeros(0)
    peeled = Peeled(
        np.zeros((0, width)), nothing.astype(int), nothing, nothing, nothing.astype(int)
    )
    batch, turn = 0, 0
    while peeled.shares.sum() < 1 - 1e-3:
        below, above = _subtract_records(network, peeled)
        fresh = _exclusive(network, below, above, roundoff, turn, peeled)
        fresh, batch = _accept_whole_shares(fresh, peeled, batch)
        if not len(fresh.labels):
            break
        peeled = _solve_shares(network, peeled + fresh, roundoff)
        turn += 1
    return peeled


def _subtract_records(network: Propagation, peeled: Peeled) -> tuple[_Remainder, _Remainder]:
    """Take the records found out of the gradients of the last two layers."""
    lower, upper = network.last - 1, network.last
    below, above = network.weight_gradients[lower], network.weight_gradients[upper].T
    bias = network.bias_gradients[lower]
    mass_below, mass_above = np.linalg.norm(below, axis=1), np.linalg.norm(above, axis=1)
    for index in range(len(peeled.labels)):
        one = slice(index, index + 1)
        (first, slope), (second, _) = network.gradients(
            peeled.activations[one], peeled.labels[one], peeled.shares[one], lower
        )
        below, bias, above = below - first, bias - slope, above - second.T
        mass_below = mass_below + np.linalg.norm(first, axis=1)
        mass_above = mass_above + np.linalg.norm(second, axis=0)
    return _Remainder(below, bias, mass_below), _Remainder(above, np.zeros(len(bias)), mass_above)


def _solve_shares(network: Propagation, peeled: Peeled, roundoff: float) -> Peeled:
    """Solve Eq. 5 for the records found, on all rows that they explain without the others.

    One row gives a record to within its own rounding; the error would grow from one subtraction
    to the next.
    """
    lower = network.last - 1
    below, _ = _subtract_records(network, peeled)
    rows = (below.mass > 0) & (below.size <= CLEAR * roundoff * below.mass)
    if rows.sum() < 2 * len(peeled.labels):
        return peeled
    activations = network.forward(peeled.activations, lower)
    signals = network.backward(activations, loss_vectors(activations[-1], peeled.labels))[0]
    weight = 1 / below.mass[rows]
    moved = solve_scaled(
        (signals * peeled.shares[:, None])[:, rows].T * weight[:, None],
        network.weight_gradients[lower][rows] * weight[:, None],
    )
    trial = replace(peeled, activations=clean_activations(moved, roundoff) if lower else moved)
    after, _ = _subtract_records(network, trial)
    better = (
        np.isfinite(moved).all()
        and (after.size[rows] * weight).sum() < (below.size[rows] * weight).sum()
    )
    return trial if better else peeled


def clean_activations(activations: np.ndarray, roundoff: float) -> np.ndarray:
    """Activations of a hidden layer with rounding errors about zero set to zero."""
    top = activations.max(1, keepdims=True, initial=0)
    return np.where(activations > CLEAR * roundoff * top, activations, 0.0)


def _accept_whole_shares(fresh: Peeled, peeled: Peeled, batch: int) -> tuple[Peeled, int]:
    """Keep records whose share is a whole number of 1/M, until shares are used up; best first.

    M is read from the surest record. Equal records share one row with a multiple of 1/M, so M is
    raised if a later record has half or a third of that.
    """
    accepted: list[int] = []
    total = peeled.shares.sum()
    for index, share in enumerate(fresh.shares):
        batch = batch or max(round(1 / share), 1)
        copies = share * batch
        if copies < 0.6 and abs(1 / copies - round(1 / copies)) < WHOLE:
            batch, copies = batch * round(1 / copies), 1.0
        if abs(copies - round(copies)) > WHOLE or round(copies) < 1:
            continue
        if total + share > 1 + WHOLE / batch:
            continue
        accepted.append(index)
        total += share
    chosen = fresh[accepted]
    return replace(chosen, shares=np.round(chosen.shares * batch) / max(batch, 1)), batch


def _exclusive(
    network: Propagation,
    below: _Remainder,
    above: _Remainder,
    roundoff: float,
    turn: int,
    peeled: Peeled,
) -> Peeled:
    """Test every neuron of the last hidden layer, and keep one of those that agree on a record."""
    lower, upper = network.last - 1, network.last
    size, size_above = below.size, above.size
    clear = (size > CLEAR * roundoff * below.mass) & (size_above > CLEAR * roundoff * above.mass)
    rows = np.flatnonzero(clear)
    row, column = below.weight[rows], above.weight[rows]
    if network.biased[lower]:
        activations = row / below.bias[rows, None]
    else:
        activations = row / size[rows, None]
        # The neuron is active, which settles the sign.
        active = (activations * network.weights[lower][rows]).sum(1)
        activations = activations * np.sign(active)[:, None]
    if lower:
        activations = clean_activations(activations, roundoff)
    labels = column.argmin(1)
    hidden = network.forward(activations, lower)[1]
    logits = hidden @ network.weights[upper].T
    if not network.biased[lower]:
        if network.classes < 3:
            return peeled[:0]
        length = log_linear_scale(logits, network.biases[upper], column, labels)
        activations, hidden, logits = (length[:, None] * a for a in (activations, hidden, logits))
    losses = loss_vectors(logits + network.biases[upper], labels)
    misfits, shares = _misfits(network, rows, row, column, activations, hidden, losses, labels)
    good = np.isfinite(misfits) & (shares > 1 / LARGEST_BATCH)
    good &= shares < 1 + ACCEPTABLE * roundoff
    misfits = np.where(good, misfits, np.inf)
    # Noise of a row grows as what is left of it shrinks.
    noise = roundoff * np.maximum(
        below.mass[rows] / size[rows], above.mass[rows] / size_above[rows]
    )
    limit = max(ACCEPTABLE * roundoff, 1e-6)
    chosen = np.flatnonzero(misfits <= np.minimum(limit, SURE * noise))
    if not len(chosen) and len(misfits) and misfits.min() <= limit:
        chosen = np.array([int(misfits.argmin())])
    # Of the neurons that show one record the one with the least noise is kept.
    chosen = chosen[np.argsort(noise[chosen])]
    return _distinct(
        Peeled(
            activations[chosen],
            labels[chosen],
            shares[chosen],
            misfits[chosen],
            np.full(len(chosen), turn),
        ),
        peeled,
    )


def _misfits(
    network: Propagation,
    rows: np.ndarray,
    row: np.ndarray,
    column: np.ndarray,
    activations: np.ndarray,
    hidden: np.ndarray,
    losses: np.ndarray,
    labels: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """How badly each neuron fails the test of seeing one record alone, and the record's share.

    The label's entry p_y − 1 carries an absolute rounding error in float32: it counts less where
    the loss is small. So does the row's own length, which that entry enters.
    """
    index = np.arange(len(rows))
    away = np.ones_like(losses, dtype=bool)
    away[index, labels] = False
    others = np.where(away, losses, 0.0)
    scale = (others * column).sum(1) / (others**2).sum(1)
    off = column - scale[:, None] * losses
    own = -losses[index, labels]
    weight = own**2 / (1 + own**2)
    total = np.where(away, off, 0.0) ** 2
    misfit = np.sqrt(total.sum(1) + weight * off[index, labels] ** 2)
    misfit /= np.abs(scale) * np.linalg.norm(others, axis=1)
    shares = scale / hidden[index, rows]
    sent = network.weights[network.last][:, rows].T
    signal = (sent * losses).sum(1)
    measured = (row * activations).sum(1) / (activations**2).sum(1)
    bulk = (np.abs(sent) * np.abs(losses)).sum(1)
    length = np.abs(measured / shares - signal) / bulk * own / (own + 1e-2)
    misfit = np.maximum(misfit, length)
    if network.classes <= 3:
        # Few classes leave few equations: shares must be one over a whole number as well. Not
        # relative to that number: a tiny share is always near one over some large one.
        whole = 1 / shares
        misfit = np.maximum(misfit, np.abs(whole - np.round(whole)))
    return misfit, np.where(hidden[index, rows] > 0, shares, -1.0)


def _distinct(candidates: Peeled, peeled: Peeled) -> Peeled:
    """Keep the best of the neurons that tell of one record, best first, and nothing known."""
    accepted: list[int] = []
    known = peeled.activations
    for index, activation in enumerate(candidates.activations):
        others = np.vstack([known, candidates.activations[accepted]])
        gap = np.linalg.norm(others - activation, axis=1)
        labels = np.concatenate([peeled.labels, candidates.labels[accepted]])
        near = gap < 1e-2 * np.linalg.norm(activation)
        if not (near & (labels == candidates.labels[index])).any():
            accepted.append(index)
    return candidates[accepted]
