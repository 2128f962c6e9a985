"""Preflight of private training: whether a release holds as much noise as was said.

Noise cannot be replayed, so it is the size of what is left beside a replay that is checked.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from vestige.errors import BadInput
from vestige.gradient_sequences import trace
from vestige.observations import (
    GradientRelease,
    GradientSequenceRelease,
    ModelRelease,
    UpdateRelease,
)
from vestige.record import Check, CheckOutcome
from vestige.records import Records
from vestige.shadows import ShadowTraining
from vestige.simulation import Simulator, one_hot
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
    simulator: Simulator, release: GradientSequenceRelease, reference: Records, told: str
) -> Check:
    """Whether what all records leave of noisy gradients is as large as the noise that was said.

    Its squared norm over σ²C² is χ² with one degree of freedom for each number of the release.
    """
    held = trace(simulator, release, reference)
    # A step holds the unknown record where that explains it better.
    explained = (2 * held.products - held.squared_norms).clamp(min=0).sum()
    private = simulator.private
    assert private is not None
    numbers = sum(tensor.numel() for tensor in release.tensors.values())
    noise = private.mechanism.noise_multiplier
    ratio = math.sqrt(float(held.remainders.sum() - explained) / numbers) / noise
    if abs(ratio - 1) <= max(NORM, 5 / math.sqrt(2 * numbers)):
        return Check(
            outcome=CheckOutcome.PASSED,
            sentence="What known records and secret leave of the noisy gradients is as large as "
            f"the noise: ratio {ratio:.3f}.",
        )
    return _failed(
        "What known records and secret leave of the noisy gradients is not as large as the noise "
        f"(ratio {ratio:.3g}): the training was another.",
        f"Compare the victim's code with {told}: clipping, noise, learning rate, known records, "
        "sampling.",
    )


def check_noise_of_gradient(
    simulator: Simulator, release: GradientRelease, reference: Records, told: str
) -> Check:
    """Whether what the clipped records leave of one noisy gradient is as large as its noise.

    Its squared norm over the noise's variance is χ² with one degree of freedom for each number.
    """
    like = next(iter(simulator.parameters.values()))
    records = reference.to(like.device)
    with torch.no_grad():
        replayed = simulator.gradient(
            records.x.to(like.dtype), one_hot(records.y, reference.classes, like.dtype)
        )
    left = sum(
        float((value.double() - replayed[name].double()).square().sum())
        for name, value in release.tensors.items()
    )
    numbers = sum(value.numel() for value in release.tensors.values())
    deviation = simulator.reading(release.tensors, update=False, records=len(reference)).deviation
    ratio = math.sqrt(left / numbers) / float(deviation)
    if abs(ratio - 1) <= max(NORM, 5 / math.sqrt(2 * numbers)):
        return Check(
            outcome=CheckOutcome.PASSED,
            sentence="What the clipped records leave of the noisy gradient is as large as the "
            f"noise: ratio {ratio:.3f}.",
        )
    return _failed(
        "What the clipped records leave of the noisy gradient is not as large as the noise (ratio "
        f"{ratio:.3g}): the step was another.",
        f"Compare the victim's code with {told}: clipping, noise, loss, normalisation, mode.",
    )


def check_noise_of_update(
    simulator: Simulator, release: UpdateRelease, reference: Records, told: str
) -> Check:
    """Whether what a noiseless replay leaves of a private update is about as large as its noise.

    Noise of one step changes the gradients of the next, so a factor is allowed.
    """
    like = next(iter(simulator.parameters.values()))
    records = reference.to(like.device)
    with torch.no_grad():
        made = simulator.update(
            records.x.to(like.dtype), one_hot(records.y, reference.classes, like.dtype)
        )
    left = sum(
        float((value.double() - made[name].double()).square().sum())
        for name, value in release.tensors.items()
    )
    numbers = sum(value.numel() for value in release.tensors.values())
    deviation = simulator.reading(release.tensors, update=True, records=len(reference)).deviation
    ratio = math.sqrt(left / numbers) / float(deviation)
    if 1 / FACTOR <= ratio <= FACTOR:
        return Check(
            outcome=CheckOutcome.PASSED,
            sentence="What a replay without noise leaves of the private update is about as large "
            f"as its noise: ratio {ratio:.2f}.",
        )
    return _failed(
        "What a replay without noise leaves of the private update is not as large as its noise "
        f"(ratio {ratio:.3g}): the client did something else.",
        f"Compare the victim's code with {told}: clipping, noise, steps, learning rate.",
    )


def check_noise_of_model(
    simulator: Simulator, release: ModelRelease, reference: Records, told: str
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
        return _failed(
            "The private training cannot be simulated.",
            "Check that the model and the batch are those of the release, and that every layer "
            "treats each record by itself.",
        )
    mean = simulated.mean(0)
    theirs = float((simulated - mean).square().sum()) / (SHADOWS - 1)
    its_own = float((released - mean).square().sum()) / (1 + 1 / SHADOWS)
    ratio = math.sqrt(its_own / theirs) if theirs > 0 else math.inf
    if 1 / FACTOR <= ratio <= FACTOR:
        return Check(
            outcome=CheckOutcome.PASSED,
            sentence="The released model lies among private trainings simulated with the same "
            f"records, as far from their mean as they are: ratio {ratio:.2f}.",
        )
    words = "closer to" if ratio < 1 else "farther from"
    return _failed(
        f"The released model is {words} the mean of private trainings simulated with the same "
        f"records than they are (ratio {ratio:.3g}): the training was another.",
        f"Compare the victim's code with {told}: clipping, noise, steps, learning rate, known "
        "records.",
    )


def _failed(sentence: str, remedy: str) -> Check:
    return Check(outcome=CheckOutcome.FAILED, sentence=sentence, remedy=remedy)
