"""Kernels that train linear heads in the span of their features, sixteen heads at a time.

The recursions are those of :mod:`vestige.shadows.heads.dual` and
:mod:`vestige.shadows.heads.private`. Each head has a lane of its own in every array of a step,
(classes, records, lanes), so all steps of sixteen heads are taken in a core's own cache, without
sums across lanes. Records are padded to whole tiles by ones whose gradients are zero.
"""

from __future__ import annotations

import numpy as np
from numba import float32, njit

from vestige.shadows.heads.compiled.normals import fill_normal
from vestige.shadows.heads.compiled.vectors import (
    CHUNKS,
    COLUMNS,
    LANES,
    OPTIONS,
    ROWS,
    combine_tile,
    dot_tile,
    move_eight,
    prefetch,
    product_tile,
    residual_column,
)


@njit(**OPTIONS)
def aligned(count):
    """Zeros that start where a line of the cache starts: no vector lies across two lines."""
    raw = np.zeros(count + LANES, np.float32)
    first = -(raw.ctypes.data // raw.itemsize) % LANES
    return raw[first : first + count]


@njit(**OPTIONS)
def _logistic(out, logits, goals, factors, sums, scale):
    for i in range(out.size):
        small = np.exp(-abs(logits[i]))
        top = float32(1) if logits[i] >= 0 else small
        found = (top / (float32(1) + small) - goals[i]) * factors[i]
        out[i] = found
        sums[i] += scale * found


@njit(**OPTIONS)
def add_residuals(out, logits, goals, factors, sums, scale, classes):
    """Gradients of the loss with respect to logits, (probability − goal)·factor.

    All arrays are flat; ``scale`` times the result is added to ``sums``.
    """
    if classes == 1:
        wide = factors.size
        _logistic(out[:wide], logits[:wide], goals, factors, sums[:wide], scale)
        return
    size = factors.size // LANES
    for record in range(size):
        residual_column(out, logits, goals, factors, sums, scale, record, classes, size)


@njit(**OPTIONS)
def _add(values, kept, moved, scale):
    for i in range(values.size):
        values[i] = kept * values[i] + scale * moved[i]


@njit(**OPTIONS)
def multiply_into(out, source, kept, scale, matrix, values, rows, size):
    """``out = kept·source + scale·values·matrixᵀ`` for the heads of all lanes."""
    for column in range(0, size, COLUMNS):
        for row in range(0, rows, ROWS):
            product_tile(out, source, kept, scale, matrix, values, row, column, size)


@njit(**OPTIONS)
def _take_steps(gram, logits, goals, factors, batches, training, work, coefficients):
    """All steps of SGD of sixteen heads, in flat arrays; see ``train`` for the arguments."""
    steps, classes, rate, decay, momentum, batch, records = training
    residuals, velocity, slow, factor = work
    size = factors.size // LANES
    rows = logits.size // factors.size
    kept, one = 1 - rate * decay, float32(1)
    factor[:] = factors * float32(1 / records)
    for step in range(steps):
        if batch < records:
            epoch, number = divmod(step, -(-records // batch))
            share = float32(1 / min(batch, records - number * batch))
            for i in range(factor.size):
                factor[i] = factors[i] * share if batches[epoch, i] == number else float32(0)
        # Without momentum, the decay of all later steps at once: one pass over memory less.
        scale = float32(-rate * kept ** (steps - 1 - step) if momentum == 0 else 0.0)
        add_residuals(residuals, logits, goals, factor, coefficients, scale, classes)
        if momentum == 0:
            multiply_into(
                logits, logits, float32(kept), float32(-rate), gram, residuals, rows, size
            )
            continue
        multiply_into(velocity, velocity, float32(momentum), one, gram, residuals, rows, size)
        _add(velocity, one, logits, float32(decay))
        _add(logits, one, velocity, float32(-rate))
        _add(slow, float32(momentum), residuals, one)
        _add(slow, one, coefficients, float32(decay))
        _add(coefficients, one, slow, float32(-rate))


@njit(**OPTIONS)
def _dots(out, at, stride, plus, left, rows, right, columns, width):
    whole = width // LANES * LANES
    dot_tile(out, at, stride, plus, left, rows, right, columns, whole)
    if whole == width:
        return
    for i in range(ROWS):
        for j in range(COLUMNS):
            total = float32(0)
            for d in range(whole, width):
                total += left[rows[i] + d] * right[columns[j] + d]
            out[at + i * stride + j * LANES] += total


@njit(**OPTIONS)
def _head_products(pool, places, start, base, classes, width, lane, gram, logits):
    """Gram matrix with a 1 for the bias, and logits at the start, of one head into its lane.

    Of the Gram matrix, the part above the diagonal; ``places`` are padded to one more than whole
    tiles.
    """
    size = places.size - 1
    wide = size * LANES
    for column in range(0, size, COLUMNS):
        columns = (
            places[column],
            places[column + 1],
            places[column + 2],
            places[column + 3],
            places[column + 4],
        )
        at = column * LANES + lane
        for row in range(0, column + COLUMNS, ROWS):
            rows = (places[row], places[row + 1])
            _dots(gram, row * wide + at, wide, float32(1), pool, rows, pool, columns, width)
        for row in range(0, classes, ROWS):
            rows = (base + row * width, base + min(row + 1, classes - 1) * width)
            _dots(logits, row * wide + at, wide, float32(0), start, rows, pool, columns, width)


@njit(**OPTIONS)
def _mirror(gram, size):
    """Copy what is above the diagonal of Gram matrices below it."""
    for row in range(1, size):
        for column in range(row):
            to, source = (row * size + column) * LANES, (column * size + row) * LANES
            move_eight(gram, to, gram, source)
            move_eight(gram, to + 8, gram, source + 8)


@njit(**OPTIONS)
def _prefetch_rows(pool, places, width):
    for place in places:
        for d in range(0, width, 16):
            prefetch(pool, place + d)


@njit(**OPTIONS)
def _head_weights(out, start, base, share, own, pool, places, classes, width):
    """Weights share·W₀ + A·X and biases A·1 of one head; ``own`` is A, flat."""
    records = places.size
    whole, tile = width // LANES * LANES, CHUNKS * LANES
    for row in range(0, classes, ROWS):
        second = min(row + 1, classes - 1)
        to = (row * width, second * width)
        starts = (base + to[0], base + to[1])
        factors = (row * records, second * records)
        at = 0
        while at + tile <= whole:
            combine_tile(out, to, start, starts, share, own, factors, pool, places, at, 4)
            at += tile
        while at < whole:
            combine_tile(out, to, start, starts, share, own, factors, pool, places, at, 1)
            at += LANES
        for c in range(row, second + 1):
            for d in range(whole, width):
                total = share * start[base + c * width + d]
                for n in range(records):
                    total += own[c * records + n] * pool[places[n] + d]
                out[c * width + d] = total
            bias = float32(0)
            for n in range(records):
                bias += own[c * records + n]
            out[classes * width + c] = bias


@njit(**OPTIONS)
def train(pool, members, targets, weights, batches, training, initial, generator, out):
    """Train a head on each set of ``members`` (s, n), into the rows of ``out``.

    ``pool`` (records, width) are the features, ``targets`` (s, n) labels and ``weights`` what
    multiplies the loss of each label. ``training`` is (steps, classes, learning rate, weight decay,
    momentum, size of a batch, n); where batches are smaller than n, ``batches`` (epochs, s, n) are
    the numbers of those that records are in. ``initial`` is the deviation of initial weights, what
    training leaves of them, and the weights (s, classes·width), or none to draw them with
    ``generator``: a state of 624 words and the place in it. Returns the next place.
    """
    heads, records = members.shape
    width, classes = pool.shape[1], training[1]
    state, place = generator
    size, rows = -(-records // COLUMNS) * COLUMNS, -(-classes // ROWS) * ROWS
    wide = size * LANES
    gram = aligned((size + 1) * wide)
    logits, coefficients = aligned(rows * wide), aligned(rows * wide)
    residuals, velocity = aligned(rows * wide), aligned(rows * wide)
    slow, factor = aligned(rows * wide), aligned(wide)
    work = (residuals, velocity, slow, factor)
    goals, factors = aligned(classes * wide), aligned(wide)
    lane_batches = np.zeros((len(batches), wide), np.int32)
    start = aligned(LANES * classes * width)
    own = np.empty(classes * records, np.float32)
    places = np.empty((LANES, size + 1), np.int64)
    deviation, share, given = initial
    features = pool.ravel()
    for first in range(0, heads, LANES):
        count = min(LANES, heads - first)
        for lane in range(count):
            for n in range(size + 1):
                places[lane, n] = members[first + lane, min(n, records - 1)] * width
        _prefetch_rows(features, places[0, :records], width)
        numbers = start[: count * classes * width]
        if given.size:
            numbers[:] = given[first : first + count].ravel()
        else:
            place = fill_normal(state, place, numbers, float32(deviation))
        goals[:] = 0
        for lane in range(count):
            if lane + 1 < count:
                _prefetch_rows(features, places[lane + 1, :records], width)
            base = lane * classes * width
            _head_products(features, places[lane], start, base, classes, width, lane, gram, logits)
            for n in range(records):
                label = targets[first + lane, n]
                at = n * LANES + lane
                factors[at] = weights[label]
                if classes > 1:
                    goals[label * wide + at] = 1
                else:
                    goals[at] = label
                for epoch in range(len(batches)):
                    lane_batches[epoch, at] = batches[epoch, first + lane, n]
        _mirror(gram, size)
        coefficients[:] = 0
        velocity[:] = 0
        slow[:] = 0
        _take_steps(gram, logits, goals, factors, lane_batches, training, work, coefficients)
        # The last heads' features are the ones that are still in the cache.
        for lane in range(count - 1, -1, -1):
            for c in range(classes):
                for n in range(records):
                    own[c * records + n] = coefficients[c * wide + n * LANES + lane]
            _head_weights(
                out[first + lane],
                start,
                lane * classes * width,
                float32(share),
                own,
                features,
                places[lane, :records],
                classes,
                width,
            )
    return place
