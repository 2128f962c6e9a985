"""Whether a model returns what its loss takes: logits, not probabilities, one for each class."""

from __future__ import annotations

import torch

from vestige.records import Records, TextSpace
from vestige.reports.parts import Check
from vestige.simulation.losses import cross_entropy
from vestige.simulation.replayed_network import is_random
from vestige.simulation.simulator import Simulator

TOLERANCE = 1e-3
"""How far from 1 a sum of probabilities may be, in any precision."""

MOST_RECORDS = 8
"""Records that show what a model returns."""


def check_outputs(simulator: Simulator, records: Records) -> list[Check]:
    """Remarks on a model that ends in a softmax, and on one with more outputs than classes.

    Cross-entropy applies a softmax of its own, and attacks look for labels among the classes alone.
    A loss of one's own may take probabilities. Log-probabilities give the same cross-entropy as the
    logits behind them, so nothing is said of a log-softmax.
    """
    if simulator.loss is not cross_entropy or not len(records):
        return []
    try:
        x, _ = simulator.batch(records[torch.arange(min(len(records), MOST_RECORDS))])
        with torch.no_grad():
            outputs = simulator.outputs(x).double()
    except (RuntimeError, ValueError):  # what does not fit is said elsewhere
        return []
    sums, checks = outputs.sum(-1), _unnamed_classes(outputs.shape[-1], records.classes)
    if outputs.shape[-1] < 2 or bool((outputs < 0).any()) or not len(sums):
        return checks
    if not bool(((sums - 1).abs() < TOLERANCE).all()):
        return checks
    return [
        *checks,
        Check.remark(
            "The model returns probabilities (each row is not negative and adds up to 1), and the "
            "loss takes logits: it applies a second softmax, which shrinks gradients.",
            "Remove the softmax at the end of the model; if the client computes its loss from "
            "probabilities, give that loss.",
        ),
    ]


def _unnamed_classes(outputs: int, classes: int) -> list[Check]:
    if outputs <= classes:
        return []
    return [
        Check.remark(
            f"The model has {outputs:,} outputs, and the records name {classes:,} classes: a "
            "record of another class is not looked for.",
            "If a batch may hold other classes, name a class for every output in the class_names "
            "of the records' space.",
        )
    ]


def check_dropout(simulator: Simulator, records: Records) -> list[Check]:
    """A remark on texts of a model that trains with dropout, in layers or inside attention.

    A replay leaves dropout out, so what it computes of a text is not what the client computed.
    """
    if simulator.mode != "train" or not isinstance(records.space, TextSpace):
        return []
    if not is_random(simulator.model):
        return []
    return [
        Check.remark(
            "The model trains with dropout, in layers or inside attention. Its masks are known to "
            "the client alone and no replay has them, so no text is certified, and tokens are read "
            "less well or not at all.",
            "Set mode='eval' if clients train without dropout. Dropout is no protection: a search "
            "may read what the spans do not show.",
        )
    ]
