"""Losses of classifiers, one value for each record, and the logits they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from vestige.errors import BadInput

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs (n, k), targets (n, classes) summing to one) → loss of each record (n,)."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of soft targets, one value for each record.

    Outputs beyond the classes of the targets are padding classes that no record has: they take part
    in the softmax, and their targets are zero.
    """
    if outputs.shape[-1] < targets.shape[-1]:
        raise BadInput(
            f"The model returns {outputs.shape[-1]} logits, but the records have "
            f"{targets.shape[-1]} classes: a label would be out of range; give the model as many "
            "outputs as there are classes, or more."
        )
    return -(targets * torch.log_softmax(outputs, -1)[..., : targets.shape[-1]]).sum(-1)


def logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy for networks with a single logit: outputs (n, 1), targets (n, 2)."""
    logit = outputs.reshape(outputs.shape[0])
    return nn.functional.softplus(logit) - targets[:, 1] * logit


def logits_of(output: object) -> Tensor:
    """The logits in whatever a classifier returns: a tensor, a tuple, an object with logits."""
    found = getattr(output, "logits", output)
    if isinstance(found, Mapping) and "logits" in found:
        found = found["logits"]
    if isinstance(found, (tuple, list)):
        found = found[0]
    if not isinstance(found, Tensor):
        raise BadInput(
            f"The model returned {type(output).__name__}: it must return logits, "
            "or an object or dictionary whose entry logits holds them."
        )
    return found.flatten(1) if found.dim() > 2 else found


def one_hot(labels: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Targets (n, classes) from labels (n,)."""
    return nn.functional.one_hot(labels, classes).to(dtype)
