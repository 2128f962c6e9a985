"""Gradients of single records: all at once where torch can, one after another where it cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from vestige.errors import BadInput
from vestige.simulation.refusals import refusal
from vestige.simulation.replaced_operations import is_transformed

OwnLoss = Callable[[Mapping[str, Tensor], Tensor, Tensor], Tensor]


def each_gradient(
    own_loss: OwnLoss,
    parameters: Mapping[str, Tensor],
    x: Tensor,
    targets: Tensor,
    *,
    randomness: Literal["error", "different"] = "error",
) -> dict[str, Tensor]:
    """Gradient (n, *shape) of each record's own loss by each parameter.

    By ``torch.func.vmap``. What it cannot handle, such as the masks of transformers' models with
    their default attention, runs in a loop; within a transformation the error is raised, so that
    the caller can run without it. Raises BadInput where neither way works.
    """
    gradient = torch.func.grad(own_loss)
    held = dict(parameters)
    try:
        each = torch.func.vmap(gradient, in_dims=(None, 0, 0), randomness=randomness)
        return each(held, x, targets)
    except RuntimeError:
        if is_transformed():
            raise
    try:
        rows = [gradient(held, *pair) for pair in zip(x, targets, strict=True)]
    except RuntimeError as error:
        raise BadInput(
            refusal(error)
            or "The gradients of single records cannot be computed for this network, which "
            "clipping needs: use layers that torch.func can handle (a model of transformers takes "
            'attn_implementation="eager"), or audit without clipping.'
        ) from error
    return {name: torch.stack([row[name] for row in rows]) for name in held}
