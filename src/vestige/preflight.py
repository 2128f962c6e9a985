"""Preflight: what makes people's gradients not invert, found before an attack is blamed for it.

With a batch whose release is known, the release is recomputed and compared in norm and
direction; where they differ, the usual mistakes are tried one by one until one explains it.
Without one, only what a release shows by itself is checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from vestige.errors import BadInput
from vestige.gradient_sequences import checked_sequence
from vestige.observations import (
    GradientRelease,
    GradientSequenceRelease,
    ModelRelease,
    Release,
    UpdateRelease,
)
from vestige.preflight_alterations import (
    check_noise_of_altered,
    is_noisy,
    kept_entries,
    replayed,
)
from vestige.preflight_noise import (
    check_noise_of_gradient,
    check_noise_of_gradients,
    check_noise_of_model,
    check_noise_of_update,
)
from vestige.record import Check, CheckOutcome
from vestige.records import Records
from vestige.simulation import LocalTraining, Simulator, cross_entropy, one_hot

COSINE = 0.999
"""Agreement in direction that float32 and different orders of summation leave room for."""

NORM = 0.01
"""Largest relative difference in norm that counts as agreement."""


def check_form(simulator: Simulator, release: Release) -> list[Check]:
    """Whether a release fits the model at all: names, shapes, finite values, dead layers.

    Raises BadInput where no attack could start.
    """
    if isinstance(release, GradientSequenceRelease):
        checked_sequence(simulator, release)
        return []
    known = simulator.parameters
    foreign = sorted(set(release.tensors) - set(known))
    if foreign:
        raise BadInput(
            f"The release holds {foreign[0]!r}, which is no trainable parameter of the model: use "
            "the model the release came from, with names as in model.named_parameters()."
        )
    if not release.tensors:
        raise BadInput("The release holds no tensor: capture the gradients after backward().")
    for name, tensor in release.tensors.items():
        if tensor.shape != known[name].shape:
            raise BadInput(
                f"{name!r} has shape {tuple(tensor.shape)} in the release and "
                f"{tuple(known[name].shape)} in the model: use the model the release came from."
            )
        if not torch.isfinite(tensor).all():
            raise BadInput(
                f"{name!r} holds NaN or infinite values: the training step overflowed; release "
                "one that did not, or unscale the loss first."
            )
    checks = []
    missing = [name for name in known if name not in release.tensors]
    frozen = [n for n, p in simulator.model.named_parameters() if not p.requires_grad]
    if missing or frozen:
        names = _few([*missing, *frozen])
        silent = "are not trained" if isinstance(release, ModelRelease) else "send no gradient"
        checks.append(
            _remark(
                f"{len(missing) + len(frozen)} parameters {silent} ({names}): attacks "
                "match the rest, and less is determined.",
                "If they were not meant to be frozen, set requires_grad and capture again.",
            )
        )
    dead = [name for name, tensor in release.tensors.items() if not tensor.any()]
    if len(dead) == len(release.tensors):
        checks.append(
            _failed(
                "Every tensor of the release is zero.",
                "Train the model before it is released."
                if isinstance(release, ModelRelease)
                else "Capture the gradients after backward() and before zero_grad().",
            )
        )
    elif dead and not isinstance(release, ModelRelease):
        checks.append(
            _remark(
                f"{len(dead)} tensors of the release are all zero ({_few(dead)}): those layers "
                "are dead for this batch and say nothing.",
                "Look for dead ReLUs, or for layers that the forward pass does not use.",
            )
        )
    return checks


def check_alone(
    simulator: Simulator, release: Release, batch_size: int | None, classes: int
) -> list[Check]:
    """What a release of unknown records says about its own scale and kind.

    For cross-entropy the head's bias gradient is the mean of p − y: its negative entries are
    labels, at most one for each record, and add up to at least −1. Noise and other alterations
    hide all of this.
    """
    if simulator.clipped_noise is not None or simulator.alterations:
        return []
    name = head_bias(simulator, classes)
    if name is None or name not in release.tensors or simulator.loss is not cross_entropy:
        return []
    if isinstance(release, ModelRelease | GradientSequenceRelease):
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
            _failed(
                f"The head's bias points the wrong way for a batch of {batch_size or 1}: the batch "
                f"is larger, or the release is {kind}.",
                f"Give the true batch size (--batch-size); if it is right, say {flag}.",
            )
        )
    total = -float(bias.clamp(max=0).sum())
    if isinstance(release, GradientRelease) and simulator.reduction == "mean" and total > 1.001:
        checks.append(
            _failed(
                f"The loss is scaled by a factor of at least {total:.3g}: a mean loss cannot give "
                "this head gradient.",
                "Unscale the loss, or say that the reduction is a sum (--reduction sum).",
            )
        )
    return checks


def check_replay(
    simulator: Simulator, release: Release, reference: Records, *, told: str = "its protocol"
) -> Check:
    """Recompute a release from the batch it came from, and explain a difference if there is one."""
    if isinstance(release, GradientSequenceRelease):
        return check_noise_of_gradients(simulator, release, reference, told)
    private = simulator.clipped_noise
    if isinstance(release, ModelRelease) and private is not None and private.noise_multiplier > 0:
        found = check_noise_of_model(simulator, release, reference, told)
        blurred = found.outcome is CheckOutcome.FAILED and _random_layers(simulator.model)
        return _remark(found.sentence, found.remedy) if blurred else found
    private_noise = private is not None and private.noise_multiplier > 0
    if private_noise and simulator.alterations and isinstance(release, GradientRelease):
        return check_noise_of_altered(simulator, release, reference, told)
    if private_noise and simulator.alterations:
        return _remark(
            "Private noise of local steps that was altered afterwards cannot be measured.",
            f"Audit the victim without its alterations once, or compare its code with {told}.",
        )
    if isinstance(release, GradientRelease) and private_noise:
        return check_noise_of_gradient(simulator, release, reference, told)
    if isinstance(release, UpdateRelease) and private_noise:
        return check_noise_of_update(simulator, release, reference, told)
    if is_noisy(simulator, release):
        return check_noise_of_altered(simulator, release, reference, told)
    agreed = agreement(simulator, release, reference)
    if agreed is None:
        return _failed(
            "The recomputed release is zero or not finite.",
            "Check that the model and the batch are those of the release.",
        )
    cosine, ratio = agreed
    noun = release_noun(release)
    said = f"cosine {cosine:.3f}, norm ratio {ratio:.3g}"
    if _agrees(cosine, ratio):
        return Check(
            outcome=CheckOutcome.PASSED,
            sentence=f"The recomputed {noun} agrees with the release: {said}.",
        )
    if cosine >= COSINE:
        size = len(reference)
        cause = "the loss is scaled differently"
        if isinstance(release, ModelRelease):
            cause = "the unknown record weighs more or less than in the replay"
        elif abs(ratio / size - 1) < NORM and size > 1:
            cause = "the loss is summed, not averaged"
        elif abs(ratio * size - 1) < NORM and size > 1:
            cause = "the loss is averaged, not summed"
        return _failed(
            f"The recomputed {noun} has the release's direction but not its length "
            f"({said}): {cause}.",
            "Compare the number of known records and the penalty with those of the training."
            if isinstance(release, ModelRelease)
            else "Give the reduction that the client uses, and unscale mixed-precision losses.",
        )
    for cause, remedy, variant in _suspects(simulator, release):
        tried = agreement(variant, release, reference)
        if tried is not None and tried[0] >= COSINE:
            return _failed(
                f"The recomputed {noun} does not match the release ({said}): {cause}.",
                remedy,
            )
    if cosine <= -COSINE and isinstance(release, GradientRelease):
        return _failed(
            f"The release points against the recomputed {noun} ({said}): it is an "
            "update, learning rate times the negative gradient.",
            "Audit it as a FederatedUpdate, or negate it.",
        )
    # One record's trace in a model is no direction that a blur would leave alone.
    blurred = cosine >= 0.9 and not isinstance(release, ModelRelease)
    remembered = any(getattr(part, "rounds", 0) for part in simulator.alterations)
    mixed = simulator.clients > 1 and any(part.random for part in simulator.alterations)
    if blurred or remembered or mixed or _random_layers(simulator.model):
        return _remark(
            f"The recomputed {noun} differs from the release ({said}), as it does with dropout, "
            "noise, memory of earlier rounds or a shuffled order: attacks see through a blur.",
            f"If nothing random is meant to happen, compare the victim's code with {told}.",
        )
    return _failed(
        f"The recomputed {noun} does not match the release ({said}).",
        f"Compare the victim's code with {told}: loss, mode, normalisation, steps, labels"
        + (", known records." if isinstance(release, ModelRelease) else "."),
    )


def agreement(
    simulator: Simulator, release: Release, reference: Records
) -> tuple[float, float] | None:
    """Cosine and ratio of norms (release / recomputed), or None if there is nothing to compare.

    Two trained models are alike whatever one record did to them, so of a model only the difference
    to one trained without the unknown record is compared.
    """
    parameter = next(iter(simulator.parameters.values()))
    records = reference.to(parameter.device)
    x = records.x.to(parameter.dtype)
    try:
        with torch.no_grad():
            targets = one_hot(records.y, reference.classes, x.dtype)
            made_of = replayed(simulator, x, targets)
            without = _without(simulator, x, targets) if isinstance(release, ModelRelease) else None
    except (RuntimeError, ValueError):
        return None
    sent, made = _flat(release.tensors, release.tensors), _flat(made_of, release.tensors)
    kept = kept_entries(simulator, release)
    if kept is not None:
        sent, made = sent[kept], made[kept]
    if without is not None:
        common = _flat(without, release.tensors)
        sent, made = sent - common, made - common
    norms = sent.norm(), made.norm()
    if not (torch.isfinite(norms[1]) and float(norms[0]) > 0 and float(norms[1]) > 0):
        return None
    return float(sent @ made / (norms[0] * norms[1])), float(norms[0] / norms[1])


def _without(simulator: Simulator, x: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
    """The model as it is without the unknown record."""
    if not simulator.companions:
        return simulator.parameters
    return simulator.trained(x[:0], targets[:0])


def head_bias(simulator: Simulator, classes: int) -> str | None:
    """Name of the bias of the layer that makes the logits, if it has one."""
    found = simulator.logit_layer(classes)
    if found is None:
        return None
    name = f"{found[0]}.bias" if found[0] else "bias"
    return name if name in simulator.parameters else None


def _suspects(simulator: Simulator, release: Release) -> Iterator[tuple[str, str, Simulator]]:
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
    if isinstance(release, ModelRelease):
        yield from _model_suspects(simulator)
    elif simulator.local is not None:
        yield (
            "it is one gradient, not an update",
            "Audit it as a SharedGradient.",
            replace(simulator, local=None),
        )
    elif isinstance(release, GradientRelease):
        for steps in (2, 3, 5, 10):
            yield (
                f"it looks like an update of {steps} local steps, mistaken for a gradient",
                "Audit it as a FederatedUpdate with its local training.",
                replace(simulator, local=LocalTraining(steps=steps, learning_rate=0.01)),
            )


def _model_suspects(simulator: Simulator) -> Iterator[tuple[str, str, Simulator]]:
    """The usual mistakes about how a model was trained."""
    local = simulator.local
    if local is None:
        return
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


def _flat(tensors: Mapping[str, Tensor], names: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensors[name].detach().flatten().double().cpu() for name in names])


def _agrees(cosine: float, ratio: float) -> bool:
    return cosine >= COSINE and abs(ratio - 1) <= NORM


def _random_layers(model: nn.Module) -> bool:
    return any(isinstance(m, _DropoutNd) and m.p > 0 for m in model.modules())


def release_noun(release: Release) -> str:
    """What a release is, in one word."""
    if isinstance(release, GradientRelease):
        return "gradient"
    if isinstance(release, GradientSequenceRelease):
        return "training"
    return "update" if isinstance(release, UpdateRelease) else "model"


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


def _remark(sentence: str, remedy: str) -> Check:
    return Check(outcome=CheckOutcome.REMARK, sentence=sentence, remedy=remedy)


def _failed(sentence: str, remedy: str) -> Check:
    return Check(outcome=CheckOutcome.FAILED, sentence=sentence, remedy=remedy)
