"""Preflight of altered releases: the alterations replayed where they can be, measured where not."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from vestige.altered_releases import sent_tensors
from vestige.observations import Release, UpdateRelease
from vestige.record import Check, CheckOutcome
from vestige.records import Records
from vestige.simulation import Simulator, one_hot

TOLERANCE = 0.05
"""Relative difference in the size of noise beyond sampling error that counts as agreement."""

ROUNDING = 0.5
"""The same for rounding, whose size is known on average over where entries lie on their grid."""


def replayed(simulator: Simulator, x: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """What the victim releases: alterations without chance as they are, others as expected."""
    if not simulator.alterations or any(part.random for part in simulator.alterations):
        return simulator(x, targets)
    update = simulator.local is not None
    return sent_tensors(simulator, x, targets, update=update, generator=torch.Generator())


def kept_entries(simulator: Simulator, release: Release) -> Tensor | None:
    """Places of the entries that a random mask left; None for all."""
    if not any(part.random for part in simulator.alterations):
        return None
    found = simulator.reading(release.tensors, update=isinstance(release, UpdateRelease)).kept
    return None if found is None else torch.nonzero(found).flatten().cpu()


def is_noisy(simulator: Simulator, release: Release) -> bool:
    """Whether the victim says that its alterations add something random to entries."""
    if not any(part.random for part in simulator.alterations):
        return False
    return simulator.reading(release.tensors, update=isinstance(release, UpdateRelease)).noisy


def check_noise_of_altered(
    simulator: Simulator, release: Release, reference: Records, told: str
) -> Check:
    """Whether what the records leave of an altered release is as large as its noise.

    In units of the noise, its squared norm is χ² with one degree of freedom for each entry.
    """
    update = isinstance(release, UpdateRelease)
    reading = simulator.reading(release.tensors, update=update, records=len(reference))
    like = next(iter(simulator.parameters.values()))
    records = reference.to(like.device)
    with torch.no_grad():
        made = simulator(
            records.x.to(like.dtype), one_hot(records.y, reference.classes, like.dtype)
        )
    left = _joined(release.tensors, release.tensors) - _joined(made, release.tensors)
    deviation = torch.as_tensor(reading.deviation).double().cpu().expand(len(left))
    used = deviation > 0
    if reading.kept is not None:
        used &= reading.kept.cpu()
    numbers = int(used.sum())
    ratio = float((left[used] / deviation[used]).square().mean().sqrt()) if numbers else math.nan
    rounding = isinstance(reading.deviation, Tensor) or not reading.certain
    room = max(ROUNDING if rounding else TOLERANCE, 5 / math.sqrt(2 * max(numbers, 1)))
    if abs(ratio - 1) <= room:
        return Check(
            outcome=CheckOutcome.PASSED,
            sentence="What the records leave of the altered release is as large as its noise: "
            f"ratio {ratio:.3f}.",
        )
    if not reading.certain:
        return Check(
            outcome=CheckOutcome.REMARK,
            sentence="Noise that was altered after it was added, or mixed over clients, can hardly "
            f"be measured: ratio {ratio:.3g} to what was expected.",
            remedy=f"Audit the victim with its noise alone once, or compare its code with {told}.",
        )
    return Check(
        outcome=CheckOutcome.FAILED,
        sentence="What the records leave of the altered release is not as large as its noise "
        f"(ratio {ratio:.3g}): the client did something else.",
        remedy=f"Compare the victim's code with {told}: noise, rounding, loss, mode, steps.",
    )


def _joined(tensors: Mapping[str, Tensor], names: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensors[name].detach().flatten().double().cpu() for name in names])
