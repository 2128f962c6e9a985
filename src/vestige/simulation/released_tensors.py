"""The one check that released tensors are those of a model: kind, names, shapes, finite values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vestige.errors import BadInput

if TYPE_CHECKING:
    from vestige.simulation.releases import Release

REMEDY = "use the model the release came from"


def check_kind(release: Release, kind: type[Release]) -> None:
    """Raise BadInput unless a release is of a kind."""
    if not isinstance(release, kind):
        raise BadInput(
            f"The release is a {release.noun} and the simulator replays a {kind.noun}: describe "
            "the computation whose result was released; an update needs its LocalTraining."
        )


def check_tensors(
    tensors: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    *,
    whole: bool = False,
    finite: bool = True,
    steps: int | None = None,
) -> None:
    """Raise BadInput unless tensors have names and shapes of parameters, and ``finite`` values.

    With ``whole`` no parameter is missing; with ``steps`` each tensor holds one for each step.
    """
    if not tensors:
        raise BadInput("The release holds no tensor: capture the gradients after backward().")
    foreign = sorted(set(tensors) - set(parameters))
    if foreign:
        raise BadInput(
            f"The release holds {foreign[0]!r}, which is no trainable parameter of the model: "
            f"{REMEDY}, with names as in model.named_parameters()."
        )
    missing = sorted(set(parameters) - set(tensors))
    if whole and missing:
        raise BadInput(
            f"The release holds no {missing[0]!r}, which the model has: {REMEDY}, and all tensors "
            "that were trained."
        )
    for name, tensor in tensors.items():
        shape = (*(() if steps is None else (steps,)), *parameters[name].shape)
        if tensor.shape != shape:
            raise BadInput(
                f"{name!r} has shape {tuple(tensor.shape)} in the release and {shape} in the "
                f"model: {REMEDY}."
            )
        if finite and not bool(torch.isfinite(tensor).all()):
            raise BadInput(
                f"{name!r} holds NaN or infinite values: the training overflowed; release one that "
                "did not, or unscale the loss first."
            )


def joined(tensors: Mapping[str, Tensor], names: Iterable[str]) -> Tensor:
    """Named tensors as one vector in float64, on the CPU."""
    return torch.cat([tensors[name].detach().flatten().double().cpu() for name in names])
