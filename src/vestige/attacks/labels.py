"""Labels from the last layer of a gradient: exact for one record, counted for a batch.

One record: Zhao, Mopuri and Bilen 2020, "iDLG: Improved Deep Leakage from Gradients", Eq. 3–5.
Batches: Wainakh et al. 2022, "User-Level Label Leakage from Gradients in Federated Learning" (LLG,
Section 4.2) and Geng et al. 2021, "Towards General Deep Leakage in Federated Learning", Eq. 9–11,
estimate how much one record of a class contributes; we let the prior say it, class by class, and
solve for all counts at once instead of subtracting greedily.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from vestige.errors import BadInput
from vestige.observations import Public, Release, UpdateRelease
from vestige.simulation import LocalTraining, Simulator, logits_of, one_hot

PRIOR_RECORDS = 1024
"""Records of the prior used to learn what one record of each class contributes."""


def last_linear(simulator: Simulator, classes: int) -> tuple[str, nn.Linear]:
    """Name and module of the layer that makes the logits: the last linear one that fits."""
    found = simulator.logit_layer(classes)
    if found is None:
        raise BadInput(
            f"The model has no linear layer with {classes} outputs, so labels cannot be read off "
            "its gradient: tell the attacker the labels."
        )
    return found


def infer_labels(public: Public, release: Release, batch_size: int) -> Tensor:
    """Labels (batch,) in ascending order, on the CPU.

    An update is read as the gradient it would be if all its steps had been the same.
    """
    simulator = public.simulator
    name, layer = last_linear(simulator, public.classes)
    prefix = f"{name}." if name else ""
    bias, weight = (release.tensors.get(prefix + part) for part in ("bias", "weight"))
    scale = 1.0
    if isinstance(release, UpdateRelease):
        scale = -1.0 / _step_length(simulator.local) if simulator.local else -1.0
    if bias is not None:
        signature = _numbers(bias) * scale
    elif weight is not None:
        rows = _numbers(weight) * scale
        if batch_size == 1 and len(rows) > 2:
            # All rows are multiples of one feature vector and add up to zero: the label's, alone
            # with its sign, is the longest. With two classes both are, and the prior must decide.
            return torch.tensor([int(np.argmax((rows**2).sum(1)))])
        signature = rows.sum(1)
    else:
        raise BadInput(
            f"The release holds no gradient of the last layer {name!r}, so labels cannot be read "
            "off it: tell the attacker the labels."
        )
    if batch_size == 1 and bias is not None:
        one_logit = len(signature) == 1
        return torch.tensor([int(signature[0] < 0) if one_logit else int(np.argmin(signature))])
    contributions = _contributions(public, name, layer, with_bias=bias is not None)
    if simulator.reduction == "mean":
        contributions = contributions / batch_size
    counts = _whole_counts(contributions, signature, batch_size)
    return torch.repeat_interleave(torch.arange(public.classes), torch.from_numpy(counts))


def _numbers(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


def _step_length(local: LocalTraining) -> float:
    """How far local training goes along a gradient that never changes."""
    velocity, length = 0.0, 0.0
    for _ in range(local.steps):
        velocity = local.momentum * velocity + 1.0
        length += local.learning_rate * velocity
    return length


def _contributions(public: Public, name: str, layer: nn.Linear, *, with_bias: bool) -> np.ndarray:
    """What one record of each class adds to the signature (classes, outputs), by the prior."""
    simulator, records = public.simulator, public.prior.records
    records = records[:: max(1, len(records) // PRIOR_RECORDS)]
    features: list[Tensor] = []
    module = simulator.network.get_submodule(name)
    hook = module.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].detach()))
    try:
        with torch.no_grad():
            x = records.x.to(layer.weight)
            inputs = x if simulator.normalization is None else simulator.normalization(x)
            outputs = logits_of(simulator.network(inputs))
    finally:
        hook.remove()
    sums = features[-1].flatten(1).sum(1, keepdim=True)
    rows = []
    for label in range(public.classes):
        chosen = (records.y == label).to(outputs.device)
        chosen = chosen if bool(chosen.any()) else torch.ones_like(chosen)
        logits = outputs[chosen].detach().requires_grad_()
        labels = torch.full((len(logits),), label, device=outputs.device)
        targets = one_hot(labels, public.classes, logits.dtype)
        (slope,) = torch.autograd.grad(simulator.loss(logits, targets).sum(), logits)
        rows.append((slope if with_bias else slope * sums[chosen]).mean(0))
    return _numbers(torch.stack(rows))


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
