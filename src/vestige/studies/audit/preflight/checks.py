"""Preflight: what makes people's gradients not invert, found before an attack is blamed for it.

With a batch whose release is known, the release is recomputed and compared in norm and
direction; where they differ, the usual mistakes are tried one by one until one explains it.
Without one, only what a release shows by itself is checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from vestige.interfaces import (
    GradientRelease,
    GradientSequenceRelease,
    ModelRelease,
    Release,
)
from vestige.networks.headed_model import HeadedModel
from vestige.records import Records
from vestige.reports.parts import Check, CheckOutcome
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.gradient_sequence import GradientSequenceSimulator
from vestige.simulation.kinds import (
    ClientSimulator,
    ClippingSimulator,
    InformedSimulator,
    as_gradient,
    as_update,
)
from vestige.simulation.local_training import LocalTraining
from vestige.simulation.losses import cross_entropy
from vestige.simulation.network import NetworkSimulator
from vestige.simulation.released_tensors import joined
from vestige.simulation.replayed_network import is_random
from vestige.simulation.simulator import Simulator
from vestige.simulation.update import UpdateSimulator
from vestige.studies.audit.preflight.noise import (
    check_noise_of_altered,
    check_noise_of_clients,
    check_noise_of_gradients,
    check_noise_of_model,
    is_noisy,
    kept_entries,
    replayed,
)

COSINE = 0.999
"""Agreement in direction that float32 and different orders of summation leave room for."""

NORM = 0.01
"""Largest relative difference in norm that counts as agreement."""


def check_form(simulator: Simulator, release: Release) -> list[Check]:
    """Whether a release fits the model at all: names, shapes, finite values, dead layers.

    Raises BadInput where no attack could start.
    """
    simulator.check(release)
    if isinstance(release, GradientSequenceRelease):
        return []
    known = simulator.parameters
    checks = []
    missing = [name for name in known if name not in release.tensors]
    frozen = [n for n, p in simulator.model.named_parameters() if not p.requires_grad]
    if isinstance(simulator.network, HeadedModel):  # a frozen backbone is what a head is trained on
        frozen = [name for name in frozen if not name.startswith("backbone.")]
    if missing or frozen:
        names = _few([*missing, *frozen])
        silent = "are not trained" if isinstance(release, ModelRelease) else "send no gradient"
        checks.append(
            Check.remark(
                f"{len(missing) + len(frozen)} parameters {silent} ({names}): attacks "
                "match the rest, and less is determined.",
                "If they were not meant to be frozen, set requires_grad and capture again.",
            )
        )
    dead = [name for name, tensor in release.tensors.items() if not tensor.any()]
    if len(dead) == len(release.tensors):
        checks.append(
            Check.failed(
                "Every tensor of the release is zero.",
                "Train the model before it is released."
                if isinstance(release, ModelRelease)
                else "Capture the gradients after backward() and before zero_grad().",
            )
        )
    elif dead and not isinstance(release, ModelRelease):
        checks.append(
            Check.remark(
                f"{len(dead)} tensors of the release are all zero ({_few(dead)}): those layers "
                "are dead for this batch and say nothing.",
                "Look for dead ReLUs, or for layers that the forward pass does not use.",
            )
        )
    return checks


def check_alone(
    simulator: Simulator,
    release: Release,
    batch_size: int | None,
    classes: int,
    labels: Tensor | None = None,
) -> list[Check]:
    """What a release of unknown records says about its own scale, kind and labels, told or not.

    For cross-entropy the head's bias gradient is the mean of p − y: its negative entries are
    labels, at most one for each record, and add up to at least −1. Noise and other alterations
    hide all of this.
    """
    if not isinstance(simulator, ClientSimulator):
        return []
    if simulator.clipped_noise is not None or simulator.alterations:
        return []
    name = head_bias(simulator, classes)
    if name is None or name not in release.tensors or simulator.loss is not cross_entropy:
        return []
    bias = release.tensors[name].detach().double().cpu()
    if not isinstance(release, GradientRelease):
        bias = -bias
    positive, negative = int((bias > 0).sum()), int((bias < 0).sum())
    most = min(batch_size or 1, bias.numel() - 1)
    checks = []
    if negative > most >= positive:
        kind = "an update" if isinstance(release, GradientRelease) else "a gradient"
        flag = "--update" if isinstance(release, GradientRelease) else "no --update"
        checks.append(
            Check.failed(
                f"The head's bias points the wrong way for a batch of {batch_size or 1}: the batch "
                f"is larger, or the release is {kind}.",
                f"Give the true batch size (--batch-size); if it is right, say {flag}.",
            )
        )
    total = -float(bias.clamp(max=0).sum())
    if isinstance(release, GradientRelease) and simulator.reduction == "mean" and total > 1.001:
        checks.append(
            Check.failed(
                f"The loss is scaled by a factor of at least {total:.3g}: a mean loss cannot give "
                "this head gradient.",
                "Unscale the loss, or say that the reduction is a sum (--reduction sum).",
            )
        )
    if isinstance(release, GradientRelease):
        checks += _check_labels(bias, classes, labels)
    return checks


def _check_labels(bias: Tensor, classes: int, labels: Tensor | None) -> list[Check]:
    """Whether classes that are certainly in the batch are named, and among the labels told."""
    present = torch.nonzero(bias < 0).flatten().tolist()
    unnamed = [label for label in present if label >= classes]
    if unnamed and bias.numel() > classes:
        return [
            Check.failed(
                f"The batch holds class {unnamed[0]} (the head's bias gradient is negative there), "
                f"and the prior names classes 0 … {classes - 1} alone.",
                "Name a class for every output of the model in the class_names of the prior.",
            )
        ]
    told = set() if labels is None else set(labels.tolist())
    missing = [label for label in present if label not in told]
    if labels is None or not missing:
        return []
    return [
        Check.remark(
            f"The labels that were told may be wrong: the head's bias gradient is negative at "
            f"class {missing[0]}, as under cross-entropy only for classes in the batch, and that "
            "class is not among them.",
            "Check the labels and the order of classes; or tell no labels.",
        )
    ]


def check_replay(
    simulator: Simulator, release: Release, reference: Records, *, told: str = "its protocol"
) -> Check:
    """Recompute a release from the batch it came from, and explain a difference if there is one."""
    noisy = _check_private_noise(simulator, release, reference, told)
    if noisy is not None:
        return noisy
    if isinstance(simulator, ClientSimulator) and is_noisy(simulator, release):
        return check_noise_of_altered(simulator, release, reference, told)
    agreed = agreement(simulator, release, reference)
    if agreed is None:
        return Check.failed(
            "The recomputed release is zero or not finite.",
            "Check that the model and the batch are those of the release.",
        )
    cosine, ratio = agreed
    noun = release.noun
    said = f"cosine {cosine:.3f}, norm ratio {ratio:.3g}"
    if _agrees(cosine, ratio):
        return Check.passed(f"The recomputed {noun} agrees with the release: {said}.")
    if cosine >= COSINE:
        size = len(reference)
        cause = "the loss is scaled differently"
        if isinstance(release, ModelRelease):
            cause = "the unknown record weighs more or less than in the replay"
        elif abs(ratio / size - 1) < NORM and size > 1:
            cause = "the loss is summed, not averaged"
        elif abs(ratio * size - 1) < NORM and size > 1:
            cause = "the loss is averaged, not summed"
        return Check.failed(
            f"The recomputed {noun} has the release's direction but not its length "
            f"({said}): {cause}.",
            "Compare the number of known records and the penalty with those of the training."
            if isinstance(release, ModelRelease)
            else "Give the reduction that the client uses, and unscale mixed-precision losses.",
        )
    for cause, remedy, variant in _suspects(simulator):
        tried = agreement(variant, release, reference)
        if tried is not None and tried[0] >= COSINE:
            return Check.failed(
                f"The recomputed {noun} does not match the release ({said}): {cause}.",
                remedy,
            )
    if cosine <= -COSINE and isinstance(release, GradientRelease):
        return Check.failed(
            f"The release points against the recomputed {noun} ({said}): it is an "
            "update, learning rate times the negative gradient.",
            "Audit it as a FederatedUpdate, or negate it.",
        )
    # One record's trace in a model is no direction that a blur would leave alone.
    blurred = cosine >= 0.9 and not isinstance(release, ModelRelease)
    if blurred or _differs_by_round(simulator) or is_random(simulator.model):
        return Check.remark(
            f"The recomputed {noun} differs from the release ({said}), as it does with dropout, "
            "noise, memory of earlier rounds or a shuffled order: attacks see through a blur.",
            f"If nothing random is meant to happen, compare the victim's code with {told}.",
        )
    return Check.failed(
        f"The recomputed {noun} does not match the release ({said}).",
        f"Compare the victim's code with {told}: loss, mode, normalisation, steps, labels"
        + (", known records." if isinstance(release, ModelRelease) else "."),
    )


def _check_private_noise(
    simulator: Simulator, release: Release, reference: Records, told: str
) -> Check | None:
    """The check of a release that holds noise of DP-SGD; None for others."""
    if isinstance(simulator, GradientSequenceSimulator):
        return check_noise_of_gradients(simulator, release, reference, told)
    if not isinstance(simulator, ClippingSimulator):
        return None
    if simulator.clipped_noise is None or simulator.clipped_noise.noise_multiplier == 0:
        return None
    if isinstance(simulator, NetworkSimulator):
        found = check_noise_of_model(simulator, release, reference, told)
        blurred = found.outcome is CheckOutcome.FAILED and is_random(simulator.model)
        return Check.remark(found.sentence, found.remedy) if blurred else found
    if not simulator.alterations:
        return check_noise_of_clients(simulator, release, reference, told)
    if isinstance(simulator, GradientSimulator):
        return check_noise_of_altered(simulator, release, reference, told)
    return Check.remark(
        "Private noise of local steps that was altered afterwards cannot be measured.",
        f"Audit the victim without its alterations once, or compare its code with {told}.",
    )


def agreement(
    simulator: Simulator, release: Release, reference: Records
) -> tuple[float, float] | None:
    """Cosine and ratio of norms (release / recomputed), or None if there is nothing to compare.

    Two trained models are alike whatever one record did to them, so of a model only the difference
    to one trained without the unknown record is compared.
    """
    x, targets = simulator.batch(reference)
    try:
        with torch.no_grad():
            made_of = replayed(simulator, x, targets)
            without = _without(simulator, x, targets) if isinstance(release, ModelRelease) else None
    except (RuntimeError, ValueError):
        return None
    sent, made = joined(release.tensors, release.tensors), joined(made_of, release.tensors)
    kept = kept_entries(simulator, release)
    if kept is not None:
        sent, made = sent[kept], made[kept]
    if without is not None:
        common = joined(without, release.tensors)
        sent, made = sent - common, made - common
    norms = sent.norm(), made.norm()
    if not (torch.isfinite(norms[1]) and float(norms[0]) > 0 and float(norms[1]) > 0):
        return None
    return float(sent @ made / (norms[0] * norms[1])), float(norms[0] / norms[1])


def _without(simulator: Simulator, x: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
    """The model as it is without the unknown record."""
    if isinstance(simulator, InformedSimulator) and len(simulator.companions):
        return simulator(x[:0], targets[:0])
    return simulator.parameters


def head_bias(simulator: Simulator, classes: int) -> str | None:
    """Name of the bias of the layer that makes the logits, if it has one."""
    found = simulator.logit_layer(classes)
    if found is None:
        return None
    name = f"{found[0]}.bias" if found[0] else "bias"
    return name if name in simulator.parameters else None


def _suspects(simulator: Simulator) -> Iterator[tuple[str, str, Simulator]]:
    """The usual mistakes, each with its remedy and the simulator in which it is undone."""
    other = "eval" if simulator.mode == "train" else "train"
    yield (
        f"the client ran in {other} mode",
        f"Set mode={other!r}.",
        replace(simulator, mode=other),
    )
    if simulator.normalization is not None:
        yield (
            "the client did not normalise its inputs",
            "Set normalization=None.",
            replace(simulator, normalization=None),
        )
    if isinstance(simulator, NetworkSimulator):
        yield from _model_suspects(simulator)
    elif isinstance(simulator, UpdateSimulator):
        yield (
            "it is one gradient, not an update",
            "Audit it as a SharedGradient.",
            as_gradient(simulator),
        )
    elif isinstance(simulator, GradientSimulator):
        for steps in (2, 3, 5, 10):
            yield (
                f"it looks like an update of {steps} local steps, mistaken for a gradient",
                "Audit it as a FederatedUpdate with its local training.",
                as_update(simulator, LocalTraining(steps, learning_rate=0.01)),
            )


def _model_suspects(simulator: NetworkSimulator) -> Iterator[tuple[str, str, Simulator]]:
    """The usual mistakes about how a model was trained."""
    local = simulator.local
    other = "sum" if simulator.reduction == "mean" else "mean"
    yield (
        f"the loss was reduced by a {other}",
        f"Set reduction={other!r}.",
        replace(simulator, reduction=other),
    )
    if local.momentum:
        yield (
            "it was trained without momentum",
            "Set momentum=0.",
            replace(simulator, local=replace(local, momentum=0.0)),
        )
    if local.batch_size is not None:
        yield (
            "it was trained on all records at every step",
            "Set batch_size=None.",
            replace(simulator, local=replace(local, batch_size=None)),
        )


def _agrees(cosine: float, ratio: float) -> bool:
    return cosine >= COSINE and abs(ratio - 1) <= NORM


def _differs_by_round(simulator: Simulator) -> bool:
    """Whether clients remember earlier rounds, or each draws a mask of its own."""
    if not isinstance(simulator, ClientSimulator):
        return False
    remembered = any(getattr(part, "rounds", 0) for part in simulator.alterations)
    return remembered or (simulator.clients > 1 and simulator.random)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
