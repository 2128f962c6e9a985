"""Labels from the last layer of a gradient: exact for one record, counted for a batch.

One record: Zhao, Mopuri and Bilen 2020, "iDLG: Improved Deep Leakage from Gradients", Eq. 3–5.
Batches: Wainakh et al. 2022, "User-Level Label Leakage from Gradients in Federated Learning" (LLG,
Section 4.2) and Geng et al. 2021, "Towards General Deep Leakage in Federated Learning", Eq. 9–11,
estimate how much one record of a class contributes; we let the prior say it, class by class, and
solve for all counts at once instead of subtracting greedily.

Of an altered release only entries that carry a value are used, the rows of the last layer's weights
beside its bias, each weighed by its noise and by how much records of a class differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from vestige.errors import BadInput
from vestige.interfaces import Public, Release
from vestige.networks.token_model import predicts_tokens
from vestige.simulation.alterations import join_tensors, known_factor, proportional
from vestige.simulation.kinds import ClientSimulator, client_simulator
from vestige.simulation.losses import logits_of, one_hot
from vestige.simulation.simulator import Simulator

if TYPE_CHECKING:
    from vestige.records import Records

PRIOR_RECORDS = 1024
"""Records of the prior used to learn what one record of each class contributes."""

CLIPPED_RECORDS = 128
"""The same where their gradients are clipped one by one, which takes each one's whole gradient."""


def last_linear(simulator: Simulator, classes: int) -> tuple[str, nn.Linear]:
    """Name and module of the layer that makes the logits: the last linear one that fits."""
    layer = simulator.logit_layer(classes)
    if layer is None:
        raise BadInput(
            f"The model has no linear layer with {classes} outputs, so labels cannot be read off "
            "its gradient: tell the attacker the labels."
        )
    return layer


def infer_labels(public: Public, release: Release, batch_size: int) -> Tensor:
    """Labels (batch,) in ascending order, on the CPU.

    An update is read as the gradient it would be if all its steps had been the same. A language
    model has no labels: any will do.
    """
    simulator = client_simulator(public.simulator)
    if predicts_tokens(simulator.model):
        return torch.zeros(batch_size, dtype=torch.int64)
    name, layer = last_linear(simulator, public.classes)
    prefix = f"{name}." if name else ""
    bias, weight = (release.tensors.get(prefix + part) for part in ("bias", "weight"))
    scale = 1.0 / simulator.gradient_scale
    if (bias is not None or weight is not None) and _altered(simulator):
        labels = _labels_of_altered(public, release, name, layer, batch_size, scale)
        if labels is not None:
            return labels
    if bias is not None:
        signature = _numbers(bias) * scale
    elif weight is not None:
        rows = _numbers(weight) * scale
        if batch_size == 1 and len(rows) > 2:
            # All rows are multiples of one feature vector and add up to zero: the label's, alone
            # with its sign, is the longest. With two classes both are, and the prior must decide.
            return torch.tensor([int(np.argmax((rows[: public.classes] ** 2).sum(1)))])
        signature = rows.sum(1)
    else:
        raise BadInput(
            f"The release holds no gradient of the last layer {name!r}, so labels cannot be read "
            "off it: tell the attacker the labels."
        )
    if batch_size == 1 and bias is not None:
        one_logit = len(signature) == 1
        least = int(np.argmin(signature[: public.classes]))
        return torch.tensor([int(signature[0] < 0) if one_logit else least])
    contributions = _contributions(public, name, layer, with_bias=bias is not None)
    if simulator.reduction == "mean":
        contributions = contributions / batch_size
    counts = _whole_counts(contributions, signature, batch_size)
    return torch.repeat_interleave(torch.arange(public.classes), torch.from_numpy(counts))


def _numbers(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


def _contributions(public: Public, name: str, layer: nn.Linear, *, with_bias: bool) -> np.ndarray:
    """What one record of each class adds to the signature (classes, outputs), by the prior."""
    records = public.prior.records
    records = records[:: max(1, len(records) // PRIOR_RECORDS)]
    features, slopes = _features_and_slopes(public, name, layer, records)
    sums = features.sum(1, keepdim=True)
    rows = [(s if with_bias else s * sums[chosen]).mean(0) for chosen, s in slopes]
    return _numbers(torch.stack(rows))


Slopes = list[tuple[Tensor, Tensor]]
"""For each class: which records have it (n,), all of them if none, and their losses' slopes."""


def _features_and_slopes(
    public: Public, name: str, layer: nn.Linear, records: Records
) -> tuple[Tensor, Slopes]:
    """Features (n, d) that enter the last layer, and the slopes at the logits, class by class."""
    simulator = public.simulator
    features: list[Tensor] = []
    module = simulator.network.get_submodule(name)
    hook = module.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].detach()))
    try:
        with torch.no_grad():
            x = records.x.to(layer.weight)
            outputs = logits_of(simulator.network(simulator.inputs(x)))
    finally:
        hook.remove()
    slopes: Slopes = []
    for label in range(public.classes):
        chosen = (records.y == label).to(outputs.device)
        chosen = chosen if bool(chosen.any()) else torch.ones_like(chosen)
        logits = outputs[chosen].detach().requires_grad_()
        labels = torch.full((len(logits),), label, device=outputs.device)
        targets = one_hot(labels, public.classes, logits.dtype)
        (slope,) = torch.autograd.grad(simulator.loss(logits, targets).sum(), logits)
        slopes.append((chosen, slope))
    return features[-1].flatten(1), slopes


def _altered(simulator: ClientSimulator) -> bool:
    return bool(simulator.alterations) or simulator.clipped_noise is not None


def _labels_of_altered(
    public: Public, release: Release, name: str, layer: nn.Linear, batch_size: int, scale: float
) -> Tensor | None:
    """Labels (batch,) from what an altered release still shows of the last layer.

    The rows of its weights are Σ slope · features: projected on the mean feature, over the entries
    that were kept, each is a second reading of its slope. None where entries are distorted, as
    signs are, so that no such sum is left; of one record the largest still tells.
    """
    simulator = client_simulator(public.simulator)
    sizes = [tensor.numel() for tensor in release.tensors.values()]
    whole = join_tensors(release.tensors).detach() * scale
    if batch_size > 1 and not proportional(simulator.alterations, whole, sizes):
        return None
    factor = known_factor(simulator.alterations, whole, sizes)
    records = public.prior.records
    clipped = simulator.clipped_noise is not None
    records = records[:: max(1, len(records) // (CLIPPED_RECORDS if clipped else PRIOR_RECORDS))]
    features, slopes = _features_and_slopes(public, name, layer, records)
    factors = _clipping_factors(simulator, records, public.classes) if clipped else None
    parts = _read_last_layer(simulator, release, f"{name}." if name else "", batch_size)
    if simulator.clients > 1 and factor is not None:
        parts, factor = {n: _over_clients(*p, factor, simulator) for n, p in parts.items()}, 1.0
    entries = []
    for part, (values, mask, deviation) in parts.items():
        if part == "bias":
            seen, noise = torch.ones_like(features[:, :1]), deviation
            signature, used = values, mask
        else:
            mean = features.double().mean(0)
            weights = mask * mean / (mask * mean.square()).sum(1, keepdim=True).clamp_min(1e-300)
            seen = features.double() @ weights.T
            noise = (weights * deviation).square().sum(1).sqrt()
            signature, used = (weights * values).sum(1), weights.any(1)
        seen = seen if factors is None else seen * factors[:, None]
        added = [slope.double() * seen[chosen] for chosen, slope in slopes]
        spread = torch.stack([one.var(0, correction=0) for one in added]).mean(0)
        means = torch.stack([one.mean(0) for one in added])
        entries.append((means[:, used], spread[used], (signature * scale)[used], noise[used]))
    contributions, spread, signature, noise = (
        torch.cat(column, -1).cpu().numpy() for column in zip(*entries)
    )
    if simulator.reduction == "mean":
        contributions, spread = contributions / batch_size, spread / batch_size**2
    if factor is not None:
        signature, noise = signature / factor, noise / factor
    least = 1e-3 * np.abs(contributions).max(initial=1e-12)
    weights = 1 / np.sqrt(batch_size * spread + (scale * noise) ** 2 + least**2)
    contributions, signature = contributions * weights, signature * weights
    if batch_size == 1:
        # The size of one record's slope tells nothing about its label.
        norms = np.maximum(np.linalg.norm(contributions, axis=1), 1e-300)
        return torch.tensor([int(np.argmax(contributions @ signature / norms))])
    if factor is None:
        shares, _ = nnls(contributions.T, signature)
        signature = signature * batch_size / max(float(shares.sum()), 1e-300)
    # Before the release every class is as likely as another: counts are about batch/classes, with
    # the deviation √(batch/classes), in the same units as the rest.
    deviation = np.sqrt(batch_size / public.classes)
    contributions = np.hstack([contributions, np.eye(public.classes) / deviation])
    signature = np.append(signature, np.full(public.classes, deviation))
    counts = _whole_counts(contributions, signature, batch_size)
    return torch.repeat_interleave(torch.arange(public.classes), torch.from_numpy(counts))


def _read_last_layer(
    simulator: ClientSimulator, release: Release, prefix: str, batch_size: int
) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Values of the last layer's bias and weights, which of them were kept, and their noise."""
    reading = simulator.reading(release.tensors, records=batch_size)
    sizes = [tensor.numel() for tensor in release.tensors.values()]
    whole = join_tensors(release.tensors).detach().double()
    mask = torch.ones_like(whole) if reading.kept is None else reading.kept.to(whole)
    deviation = torch.as_tensor(reading.deviation).to(whole).expand(len(whole))
    readings = {}
    split = (column.split(sizes) for column in (whole, mask, deviation))
    for full, *columns in zip(release.tensors, *split):
        if full in (prefix + "bias", prefix + "weight"):
            shape = release.tensors[full].shape
            values, carries, noise = (column.reshape(shape) for column in columns)
            readings[full.removeprefix(prefix)] = values, carries.bool(), noise
    return readings


def _over_clients(
    values: Tensor, kept: Tensor, deviation: Tensor, factor: float, simulator: ClientSimulator
) -> tuple[Tensor, Tensor, Tensor]:
    """Entries of a mean over clients, each with a mask of its own that is right on average.

    A mask that multiplies what it keeps by f keeps 1/f of the entries: their variance is f − 1
    times the square of what they were, shared by the clients.
    """
    size = values.square().mean().sqrt() * max(factor - 1, 0.0) ** 0.5 / simulator.clients**0.5
    return values, torch.ones_like(kept), (deviation.square() + size.square()).sqrt()


def _clipping_factors(simulator: ClientSimulator, records: Records, classes: int) -> Tensor:
    """What clipping multiplies the gradient of each record (n,) with, under its own label."""
    private, like = simulator.clipped_noise, simulator.like
    assert private is not None
    targets = one_hot(records.y, classes, like.dtype).to(like.device)
    norms = [
        simulator.record_gradients(simulator.parameters, x, y).square().sum(1)
        for x, y in zip(records.x.to(like).split(8), targets.split(8))
    ]
    return private.factors(torch.cat(norms)).double()


def _whole_counts(contributions: np.ndarray, signature: np.ndarray, size: int) -> np.ndarray:
    """Non-negative whole counts (classes,) that add up to size and explain the signature best."""
    # Their sum is known, so it weighs more than any entry of the signature.
    weight = 10.0 * max(float(np.abs(contributions).max()), 1e-12)
    system = np.vstack([contributions.T, np.full(len(contributions), weight)])
    shares, _ = nnls(system, np.append(signature, weight * size))
    counts = np.floor(shares).astype(np.int64)
    while counts.sum() > size:
        counts[np.argmax(counts - shares)] -= 1
    while counts.sum() < size:
        counts[np.argmax(shares - counts)] += 1
    # Rounding one by one is not best together: move single records while that helps.
    gram, pull = contributions @ contributions.T, contributions @ signature
    for _ in range(10 * size):
        slope = gram @ counts - pull
        diagonal = gram.diagonal()
        # change[a, b]: half the change of the squared residual when one record goes from a to b
        change = slope[None] - slope[:, None]
        change = change + (diagonal[None] + diagonal[:, None]) / 2 - gram
        change[counts == 0] = np.inf
        source, destination = np.unravel_index(np.argmin(change), change.shape)
        if change[source, destination] >= -1e-15 * max(float(diagonal.max()), 1e-300):
            break
        counts[source] -= 1
        counts[destination] += 1
    return counts
