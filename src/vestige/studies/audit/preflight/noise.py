"""Preflight of private training and altered releases: as much noise as was said?

Noise cannot be replayed, so it is the size of what is left beside a replay that is checked.
Alterations without chance are replayed.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from vestige.errors import BadInput
from vestige.interfaces import Release
from vestige.records import Records
from vestige.reports.parts import Check
from vestige.shadows import ShadowTraining
from vestige.simulation.client_releases import sent_tensors
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.gradient_sequence import GradientSequenceSimulator
from vestige.simulation.kinds import ClientSimulator
from vestige.simulation.network import NetworkSimulator
from vestige.simulation.simulator import Simulator
from vestige.streams import stream

NORM = 0.01
"""Largest relative difference in the size of noise that counts as agreement."""

SHADOWS = 8
"""Simulated trainings that a released model is held against."""

FACTOR = 3.0
"""How far, as a factor, a released model may lie outside the spread of simulated ones.

Squared, its distance over theirs is about F(d, 7d) for noise that fills d directions: with ten
directions it is below 1/9 once in ten thousand audits and above 9 never. A network has hundreds."""


def check_noise_of_gradients(
    simulator: GradientSequenceSimulator,
    release: Release,
    reference: Records,
    told: str,
) -> Check:
    """Whether what all records leave of noisy gradients is as large as the noise that was said.

    Its squared norm over σ²C² is χ² with one degree of freedom for each number of the release.
    """
    held = simulator.trace(release, reference)
    # A step holds the unknown record where that explains it better.
    explained = (2 * held.products - held.squared_norms).clamp(min=0).sum()
    numbers = sum(tensor.numel() for tensor in release.tensors.values())
    noise = simulator.private.mechanism.noise_multiplier
    ratio = math.sqrt(float(held.remainders.sum() - explained) / numbers) / noise
    if abs(ratio - 1) <= max(NORM, 5 / math.sqrt(2 * numbers)):
        return Check.passed(
            "What known records and secret leave of the noisy gradients is as large as "
            f"the noise: ratio {ratio:.3f}.",
        )
    return Check.failed(
        "What known records and secret leave of the noisy gradients is not as large as the noise "
        f"(ratio {ratio:.3g}): the training was another.",
        f"Compare the victim's code with {told}: clipping, noise, learning rate, known records, "
        "sampling.",
    )


def check_noise_of_clients(
    simulator: ClientSimulator, release: Release, reference: Records, told: str
) -> Check:
    """Whether what a noiseless replay leaves of a private release is as large as its noise.

    Of a gradient, its squared norm over the noise's variance is χ² with one degree of freedom for
    each number. Noise of one local step changes the gradients of the next, so there a factor is
    allowed.
    """
    left = simulator.unexplained(release, reference)
    deviation = simulator.reading(release.tensors, records=len(reference)).deviation
    ratio = float(left.square().mean().sqrt()) / float(deviation)
    if isinstance(simulator, GradientSimulator):
        agrees = abs(ratio - 1) <= max(NORM, 5 / math.sqrt(2 * len(left)))
        subject = "What the clipped records leave of the noisy gradient"
        passed = f"{subject} is as large as the noise: ratio {ratio:.3f}."
        failed = (
            f"{subject} is not as large as the noise (ratio {ratio:.3g}): the step was another."
        )
        causes = "clipping, noise, loss, normalisation, mode"
    else:
        agrees = 1 / FACTOR <= ratio <= FACTOR
        subject = "What a replay without noise leaves of the private update"
        passed = f"{subject} is about as large as its noise: ratio {ratio:.2f}."
        failed = (
            f"{subject} is not as large as its noise (ratio {ratio:.3g}): the client did something "
            "else."
        )
        causes = "clipping, noise, steps, learning rate"
    if agrees:
        return Check.passed(passed)
    return Check.failed(failed, f"Compare the victim's code with {told}: {causes}.")


def check_noise_of_model(
    simulator: NetworkSimulator, release: Release, reference: Records, told: str
) -> Check:
    """Whether a privately trained model lies among models simulated with the same records.

    Its distance from their mean is compared with their own, which noise alone decides.
    """
    training = ShadowTraining(replace(simulator, fresh_initialization=False))
    same = reference[torch.zeros(SHADOWS, dtype=torch.long)]
    try:
        simulated = training.weights(same, generator=stream(0, "preflight noise")).double()
        released = training.row(release.tensors).double()
    except (RuntimeError, ValueError, BadInput):
        return Check.failed(
            "The private training cannot be simulated.",
            "Check that the model and the batch are those of the release, and that every layer "
            "treats each record by itself.",
        )
    mean = simulated.mean(0)
    theirs = float((simulated - mean).square().sum()) / (SHADOWS - 1)
    its_own = float((released - mean).square().sum()) / (1 + 1 / SHADOWS)
    ratio = math.sqrt(its_own / theirs) if theirs > 0 else math.inf
    if 1 / FACTOR <= ratio <= FACTOR:
        return Check.passed(
            "The released model lies among private trainings simulated with the same "
            f"records, as far from their mean as they are: ratio {ratio:.2f}.",
        )
    words = "closer to" if ratio < 1 else "farther from"
    return Check.failed(
        f"The released model is {words} the mean of private trainings simulated with the same "
        f"records than they are (ratio {ratio:.3g}): the training was another.",
        f"Compare the victim's code with {told}: clipping, noise, steps, learning rate, known "
        "records.",
    )


TOLERANCE = 0.05
"""Relative difference in the size of noise beyond sampling error that counts as agreement."""

ROUNDING = 0.5
"""The same for rounding, whose size is known on average over where entries lie on their grid."""


def replayed(simulator: Simulator, x: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """What the victim releases: alterations without chance as they are, others as expected."""
    if not isinstance(simulator, ClientSimulator) or not simulator.alterations or simulator.random:
        return simulator(x, targets)
    return sent_tensors(simulator, x, targets, generator=torch.Generator())


def kept_entries(simulator: Simulator, release: Release) -> Tensor | None:
    """Places of the entries that a random mask left; None for all."""
    if not isinstance(simulator, ClientSimulator) or not simulator.random:
        return None
    found = simulator.reading(release.tensors).kept
    return None if found is None else torch.nonzero(found).flatten().cpu()


def is_noisy(simulator: Simulator, release: Release) -> bool:
    """Whether the victim says that its alterations add something random to entries."""
    if not isinstance(simulator, ClientSimulator) or not simulator.random:
        return False
    return simulator.reading(release.tensors).noisy


def check_noise_of_altered(
    simulator: ClientSimulator, release: Release, reference: Records, told: str
) -> Check:
    """Whether what the records leave of an altered release is as large as its noise.

    In units of the noise, its squared norm is χ² with one degree of freedom for each entry.
    """
    reading = simulator.reading(release.tensors, records=len(reference))
    left = simulator.unexplained(release, reference)
    deviation = torch.as_tensor(reading.deviation).double().cpu().expand(len(left))
    used = deviation > 0
    if reading.kept is not None:
        used &= reading.kept.cpu()
    numbers = int(used.sum())
    ratio = float((left[used] / deviation[used]).square().mean().sqrt()) if numbers else math.nan
    rounding = isinstance(reading.deviation, Tensor) or not reading.certain
    room = max(ROUNDING if rounding else TOLERANCE, 5 / math.sqrt(2 * max(numbers, 1)))
    if abs(ratio - 1) <= room:
        return Check.passed(
            "What the records leave of the altered release is as large as its noise: "
            f"ratio {ratio:.3f}.",
        )
    if not reading.certain:
        return Check.remark(
            "Noise that was altered after it was added, or mixed over clients, can hardly "
            f"be measured: ratio {ratio:.3g} to what was expected.",
            f"Audit the victim with its noise alone once, or compare its code with {told}.",
        )
    return Check.failed(
        "What the records leave of the altered release is not as large as its noise "
        f"(ratio {ratio:.3g}): the client did something else.",
        f"Compare the victim's code with {told}: noise, rounding, loss, mode, steps.",
    )
