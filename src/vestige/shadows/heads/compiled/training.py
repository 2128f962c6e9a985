"""Linear heads by compiled kernels, from and into torch's tensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numba
import numpy as np
import torch
from torch import Tensor

from vestige.shadows.heads.compiled.kernels import train
from vestige.shadows.heads.compiled.normals import GROUP, fill_normal, fill_uniform
from vestige.shadows.heads.compiled.numbers import agree_with_torch, drawn_normal, words_of
from vestige.shadows.heads.compiled.private_kernels import draw_steps, take_steps
from vestige.shadows.heads.private import PrivateSpan
from vestige.shadows.heads.steps import drawn_batches
from vestige.simulation.head_training import HeadTraining
from vestige.simulation.training_sets import TrainingSets

__all__ = [
    "agree_with_torch",
    "drawn_normal",
    "least_heads",
    "train_heads",
    "train_once",
    "train_private_span",
]

VERSION = f"numba {numba.__version__}"

DRAWN_BYTES = 8 << 20
"""Random numbers of DP-SGD are drawn for a few steps at a time, so that they stay in a cache."""


def _drop_stale_code() -> None:
    """Delete compiled code that is older than any file of this package.

    Numba compares a function's code with the file that defines it, and not with the files of the
    functions that it calls.
    """
    newest = max(file.stat().st_mtime for file in Path(__file__).parent.glob("*.py"))
    for kernel in (train, take_steps, draw_steps, fill_normal, fill_uniform):
        module = kernel.__module__.rpartition(".")[2]
        for index in Path(str(kernel.stats.cache_path)).glob(f"{module}.*.nbi"):
            if index.stat().st_mtime < newest:
                index.unlink(missing_ok=True)


_drop_stale_code()


def least_heads(training: HeadTraining, classes: int, width: int) -> int:
    """How many heads have enough random numbers for the way that torch draws many of them."""
    drawn = classes * (training.makeup.size if training.private else width)
    return -(-GROUP // drawn)


def train_heads(
    training: HeadTraining,
    features: Tensor,
    sets: TrainingSets,
    classes: int,
    together: int,
    generator: torch.Generator,
    start: Tensor | None = None,
) -> Tensor:
    """Heads (s, size) trained by SGD on each of the sets; ``start`` are initial weights.

    Random numbers are those of ``together`` heads at a time: their initial weights, then their
    batches.
    """
    width, batched = features.shape[1], training.batch_length < training.makeup.size
    # Numpy's memory is given back to it and comes without page faults the next time.
    rows = np.empty((len(sets), classes * (width + 1)), np.float32)
    pool = features.contiguous().numpy()
    members, targets = (t.contiguous().numpy() for t in (sets.members, sets.targets))
    weights = _label_weights(training)
    recipe = (
        training.steps,
        classes,
        float(training.learning_rate),
        float(training.weight_decay),
        float(training.momentum),
        training.batch_length,
        training.makeup.size,
    )
    deviation, share = float(training.initial_deviation), float(training.initial_share)
    given, batches = np.empty((0, 0), np.float32), np.empty((0, 0, 0), np.int32)
    # Where nothing else is drawn, initial weights of all heads are one sequence.
    for first in range(0, len(sets), together if batched else max(1, len(sets))):
        part = slice(first, first + together if batched else None)
        if start is not None:
            given = start[part].flatten(1).contiguous().numpy()
        elif batched:
            shape = (len(members[part]), classes * width)
            given = drawn_normal(shape, deviation, features, generator).numpy()
        if batched:
            drawn = drawn_batches(training, len(members[part]), generator)
            batches = np.stack([epoch.numpy().astype(np.int32) for epoch in drawn])
        with words_of(generator) as state:
            state.place = train(
                pool,
                members[part],
                targets[part],
                weights,
                batches,
                recipe,
                (deviation, share, given),
                (state.words, state.place),
                rows[part],
            )
    return torch.from_numpy(rows)


def train_private_span(
    training: HeadTraining, span: PrivateSpan, targets: Tensor, generator: torch.Generator
) -> None:
    """Take all steps of DP-SGD."""
    private = training.private
    assert private is not None
    assert private.clipping_norm is not None
    heads, classes, records = span.coordinates.shape
    parts = (span.factor, span.start_products, span.squared_norms[:, 0])
    arrays = tuple(tensor.contiguous().numpy() for tensor in parts)
    recipe = (
        float(training.learning_rate),
        float(training.decay),
        float(private.sampling_rate),
        float(private.clipping_norm),
    )
    steps, size = training.steps, heads * records
    together = max(1, min(steps, DRAWN_BYTES // (4 * size * (classes + 1))))
    chances = np.empty((together, size), np.float32)
    noise = np.empty((together, size * classes), np.float32)
    labels, weights = targets.contiguous().numpy(), _label_weights(training)
    for taken in range(0, steps, together):
        count = min(together, steps - taken)
        with words_of(generator) as state:
            state.place = draw_steps(
                state.words,
                state.place,
                chances[:count],
                noise[:count],
                np.float32(training.step_noise),
            )
        take_steps(
            arrays,
            labels,
            weights,
            chances[:count],
            noise[:count],
            recipe,
            taken,
            span.coordinates.numpy(),
        )


def train_once() -> None:
    """Train a few heads, by SGD and by DP-SGD, so that all kernels are compiled."""
    from vestige.mechanisms import DPSGD
    from vestige.simulation.training_sets import ClassCounts

    generator, plain = torch.Generator().manual_seed(0), HeadTraining(ClassCounts((4, 4)), 1, 0.1)
    features, members = torch.zeros((8, 16)), torch.arange(8).expand(16, -1)
    sets = TrainingSets(members, members // 4)
    train_heads(plain, features, sets, 2, 16, generator)
    private = replace(plain, private=DPSGD(1.0, 0.5, 1, clipping_norm=1.0))
    start = torch.zeros((16, 2, 16))
    span = PrivateSpan(private, features[members], start, generator)
    train_private_span(private, span, sets.targets, generator)


def _label_weights(training: HeadTraining) -> np.ndarray:
    """What multiplies the loss of each label."""
    return np.array(training.class_weights or (1.0,) * training.makeup.outputs, np.float32)
