"""The steps of DP-SGD of linear heads, in coordinates along the span of their features.

The recursion is that of :mod:`vestige.shadows.heads.private`, the layout of arrays that of
:mod:`vestige.shadows.heads.compiled.kernels`.
"""

from __future__ import annotations

import numpy as np
from numba import float32, njit

from vestige.shadows.heads.compiled.kernels import add_residuals, aligned, multiply_into
from vestige.shadows.heads.compiled.normals import fill_normal, fill_uniform
from vestige.shadows.heads.compiled.vectors import COLUMNS, LANES, OPTIONS, ROWS


@njit(**OPTIONS)
def draw_steps(state, place, chances, noise, deviation):
    """Uniform numbers (steps, …) and normal ones (steps, …), step by step; the next place."""
    for step in range(len(chances)):
        place = fill_uniform(state, place, chances[step])
        place = fill_normal(state, place, noise[step], deviation)
    return place


@njit(**OPTIONS)
def _clip(residuals, factors, limits, norms, sampled, clipping):
    """Multiply residuals with w·min(1, C/(w‖g‖)) over the expected batch, 0 outside the sample."""
    wide = factors.size
    for i in range(wide):
        factors[i] = 0
    for c in range(residuals.size // wide):
        row = residuals[c * wide : (c + 1) * wide]
        for i in range(wide):
            factors[i] += row[i] * row[i]
    for i in range(wide):
        least = max(factors[i] * norms[i], limits[i])
        factors[i] = sampled[i] * clipping / np.sqrt(least)
    for c in range(residuals.size // wide):
        row = residuals[c * wide : (c + 1) * wide]
        for i in range(wide):
            row[i] *= factors[i]


@njit(**OPTIONS)
def take_steps(span, targets, weights, chances, noise, training, taken, coordinates):
    """Take steps of DP-SGD, from and into ``coordinates`` (s, classes, n).

    ``span`` is the factor F (s, n, n) of the Gram matrices, logits at the start (s, classes, n) and
    squared norms (s, n) of the features with a 1. ``chances`` (steps, s·n) are uniform, ``noise``
    (steps, s·classes·n) is what steps add. ``training`` is (learning rate, what a step leaves of
    the weights, sampling rate, clipping norm), ``taken`` the number of steps before these.
    """
    factor, begin, norms = span
    heads, classes, records = begin.shape
    rate, kept, sampling, clipping = training
    size, rows = -(-records // COLUMNS) * COLUMNS, -(-classes // ROWS) * ROWS
    wide = size * LANES
    matrix, transposed = aligned(size * wide), aligned(size * wide)
    first_logits, logits = aligned(rows * wide), aligned(rows * wide)
    residuals, moved, unused = aligned(rows * wide), aligned(rows * wide), aligned(rows * wide)
    goals, ones, factors = aligned(classes * wide), aligned(wide), aligned(wide)
    limits, lengths, sampled = aligned(wide), aligned(wide), aligned(wide)
    ones[:] = 1
    # Where no record is, any limit that is not zero.
    limits[:] = 1
    part = float32(1 / (sampling * records))
    for first in range(0, heads, LANES):
        count = min(LANES, heads - first)
        for lane in range(count):
            head = first + lane
            for n in range(records):
                at = n * LANES + lane
                label = targets[head, n]
                limits[at] = (clipping / weights[label]) ** 2
                lengths[at] = norms[head, n]
                for c in range(classes):
                    goals[c * wide + at] = 1 if label == (c if classes > 1 else 1) else 0
                    first_logits[c * wide + at] = begin[head, c, n]
                    moved[c * wide + at] = coordinates[head, c, n]
                for m in range(records):
                    matrix[n * wide + m * LANES + lane] = factor[head, n, m]
                    transposed[m * wide + at] = factor[head, n, m]
        share = float32(kept**taken)
        multiply_into(logits, first_logits, share, float32(1), matrix, moved, rows, size)
        for step in range(len(chances)):
            add_residuals(residuals, logits, goals, ones, unused, float32(0), classes)
            for lane in range(count):
                head = first + lane
                for n in range(records):
                    seen = chances[step, head * records + n] < sampling
                    sampled[n * LANES + lane] = part if seen else float32(0)
            _clip(residuals, factors, limits, lengths, sampled, float32(clipping))
            multiply_into(
                moved, moved, float32(kept), float32(-rate), transposed, residuals, rows, size
            )
            for lane in range(count):
                base = (first + lane) * classes * records
                for c in range(classes):
                    for n in range(records):
                        drawn = noise[step, base + c * records + n]
                        moved[c * wide + n * LANES + lane] += drawn
            share = float32(kept ** (taken + step + 1))
            multiply_into(logits, first_logits, share, float32(1), matrix, moved, rows, size)
        for lane in range(count):
            for c in range(classes):
                for n in range(records):
                    coordinates[first + lane, c, n] = moved[c * wide + n * LANES + lane]
