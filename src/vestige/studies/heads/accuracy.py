"""What the attacked heads learned: a head that learned nothing gives nothing away."""

from __future__ import annotations

from typing import Any

import numpy as np

from vestige.records import Prior, Records
from vestige.simulation.training_sets import ClassCounts, OneAgainstRest

MOST_TESTED = 2000
"""Records of the prior on which accuracy is measured where none are held out."""


def tested_records(
    makeup: ClassCounts | OneAgainstRest, prior: Prior, held_out: Records | None
) -> Records | None:
    """Records that no head was trained on: held out, else the prior's.

    None for one class against the rest, where every head has another task.
    """
    if isinstance(makeup, OneAgainstRest):
        return None
    if held_out is not None:
        return held_out if len(held_out) else None
    if not prior.collected:
        return None
    # Records can be sorted by class: one of every so many.
    step = max(1, -(-len(prior.records) // MOST_TESTED))
    return prior.records[::step] if len(prior.records) else None


def accuracy_facts(
    accuracies: np.ndarray | None,
    makeup: ClassCounts | OneAgainstRest,
    tested: Records | None,
    *,
    held_out: bool,
) -> dict[str, Any]:
    """Mean accuracy of the heads, on what, and that of always saying the most frequent label."""
    if accuracies is None or tested is None or isinstance(makeup, OneAgainstRest):
        return {}
    taught = makeup.taught(tested.y.cpu())
    return {
        "accuracy": float(accuracies.mean()),
        "tested": len(tested),
        "tested_held_out": held_out,
        "guessing": float(taught.bincount().max()) / len(taught),
    }
