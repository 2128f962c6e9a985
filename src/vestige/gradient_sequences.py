"""What the noisy gradients of DP-SGD hold of given records, for whoever knows all other records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.errors import BadInput
from vestige.observations import GradientSequenceRelease, Release
from vestige.private_steps import PrivateSteps
from vestige.records import Records
from vestige.simulation import Simulator, one_hot

AT_ONCE = 256
"""Records whose gradients are held in memory at the same time."""


@dataclass(frozen=True)
class Trace:
    """Records held against every step of a sequence, in units of the clipping norm C.

    x_t is what is left of step t without the known records, u_ti the clipped gradient of record i
    at the weights of step t: ``products`` (T, n) are ⟨x_t, u_ti⟩, ``squared_norms`` (T, n) are
    ‖u_ti‖², and ``remainders`` (T,) are ‖x_t‖².
    """

    products: Tensor
    squared_norms: Tensor
    remainders: Tensor


def trace(simulator: Simulator, release: Release, records: Records) -> Trace:
    """Follow the training along its released gradients and hold records against every step.

    The weights of every step follow from the initial ones and the released sums; the clipped
    gradients of the known records that a step had sampled are subtracted from its sum. What is
    left is noise, and the unknown record's clipped gradient where the step had sampled it.
    """
    private, known, sequence, sampled = checked_sequence(simulator, release)
    parameters = dict(simulator.parameters)
    like = next(iter(parameters.values()))
    companions, given = known.to(like.device), records.to(like.device)
    x, targets = given.x.to(like.dtype), one_hot(given.y, given.classes, like.dtype)
    known_x = companions.x.to(like.dtype)
    known_targets = one_hot(companions.y, companions.classes, like.dtype)
    rows: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    for step, chosen in enumerate(sampled.to(like.device)):
        noisy = {name: sequence[name][step].to(like) for name in parameters}
        left = torch.cat([noisy[name].flatten() for name in parameters])
        left = left - clipped_sum(
            simulator, private, parameters, known_x[chosen], known_targets[chosen]
        )
        left = left / private.clipping_norm
        products, squares = [], []
        for start in range(0, len(x), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            units = simulator.record_gradients(parameters, x[part], targets[part])
            units = private.clipped(units) / private.clipping_norm
            products.append(units @ left)
            squares.append(units.square().sum(1))
        for row, value in zip(rows, (torch.cat(products), torch.cat(squares), left @ left)):
            row.append(value.double().cpu())
        parameters = private.moved(parameters, noisy, len(known) + 1)
    products, squares, remainders = (torch.stack(row) for row in rows)
    return Trace(products, squares, remainders)


def clipped_sum(
    simulator: Simulator,
    private: PrivateSteps,
    parameters: Mapping[str, Tensor],
    x: Tensor,
    targets: Tensor,
) -> Tensor:
    """Sum (P,) of the clipped gradients of records; zero where there are none."""
    parts = [
        private.clipped(
            simulator.record_gradients(
                parameters, x[start : start + AT_ONCE], targets[start : start + AT_ONCE]
            )
        ).sum(0)
        for start in range(0, max(len(x), 1), AT_ONCE)
    ]
    return torch.stack(parts).sum(0)


def checked_sequence(
    simulator: Simulator, release: Release
) -> tuple[PrivateSteps, Records, Mapping[str, Tensor], Tensor]:
    """The private steps, the known records, the gradients and the sampling; or what is amiss."""
    private, known = simulator.private, simulator.companions
    if private is None or known is None or not isinstance(release, GradientSequenceRelease):
        raise BadInput(
            "Only the gradients that DP-SGD made beside known records can be followed: give a "
            "PrivateTraining and what it released."
        )
    steps = private.mechanism.steps
    if set(release.tensors) != set(simulator.parameters):
        odd = sorted(set(release.tensors) ^ set(simulator.parameters))[0]
        raise BadInput(
            f"The release and the model do not both have {odd!r}: give the model that was trained "
            "and the gradients of all its trainable parameters."
        )
    for name, parameter in simulator.parameters.items():
        tensor = release.tensors[name]
        if tensor.shape != (steps, *parameter.shape):
            raise BadInput(
                f"The release holds {name!r} with shape {tuple(tensor.shape)} where {steps} steps "
                f"of this model have {(steps, *parameter.shape)}: give the gradients of all steps."
            )
        if not torch.isfinite(tensor).all():
            raise BadInput(
                f"The release holds NaN or infinite values in {name!r}: give a training that did "
                "not diverge."
            )
    sampled = release.known_sampled
    if sampled is None or sampled.shape != (steps, len(known)) or sampled.dtype != torch.bool:
        raise BadInput(
            "The release does not say which known records each step sampled: give known_sampled, "
            f"boolean, with shape {(steps, len(known))}."
        )
    return private, known, release.tensors, sampled
