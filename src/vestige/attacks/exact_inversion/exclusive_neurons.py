"""Neurons that one record of a batch alone activates: Definition 1 of Pan et al. 2020."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from vestige.attacks.exact_inversion.propagation import Propagation

if TYPE_CHECKING:
    from vestige.attacks.exact_inversion.layers import DenseHead

LAST_HIDDEN, OTHERS = 2, 1
"""Exclusively activated neurons that each record needs (Pan et al. 2020, Propositions 1 and 2):
two in the last hidden layer, so that their ratios repeat, and one in every other."""


def exclusive_counts(masks: np.ndarray) -> np.ndarray:
    """How many neurons each record activates alone (b,), from the masks of a layer (b, units)."""
    alone = masks.sum(0) == 1
    return (masks & alone).sum(1)


def condition_holds(masks: Sequence[np.ndarray]) -> bool:
    """Whether a batch meets the condition, from masks (b, units), first hidden layer first."""
    if not masks:
        return False
    needed = [OTHERS] * (len(masks) - 1) + [LAST_HIDDEN]
    return all(bool((exclusive_counts(m) >= n).all()) for m, n in zip(masks, needed))


def hidden_masks(network: Propagation, inputs: np.ndarray) -> list[np.ndarray]:
    """Which hidden neurons each record activates, one array (b, units) for each hidden layer."""
    return [a > 0 for a in network.forward(inputs)[1:-1]]


def exclusivity(head: DenseHead, inputs: Tensor) -> bool:
    """Whether inputs (b, in) of a fully connected part meet the exclusivity condition.

    Pan et al. 2020, §8.4: "at least two exclusively activated neurons at the last-but-one layer
    and at least one … at other layers". It reads the secret: a measurement for the owner of the
    records, not a step of an attack.
    """
    network = Propagation(head)
    return condition_holds(hidden_masks(network, inputs.detach().cpu().double().flatten(1).numpy()))
