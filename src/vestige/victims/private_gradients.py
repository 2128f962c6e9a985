"""One step of DP-SGD by a trainer: clipped gradients of all records, and noise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vestige.errors import BadInput
from vestige.private_steps import ClippedNoise
from vestige.simulation import Simulator, logits_of
from vestige.victims.client import loss_of

AT_ONCE = 256
"""Records whose gradients are held in memory at the same time."""


def set_private_gradients(
    simulator: Simulator,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    private: ClippedNoise,
    *,
    generator: torch.Generator,
) -> None:
    """Give every trainable parameter the noisy gradient of one private step, as its ``grad``.

    Abadi et al. 2016, Algorithm 1, lines 6 to 9, with every record in the sample. The trainer's own
    code: attackers simulate the step with ``vestige.shadows``, and the preflight compares.
    """
    with torch.no_grad():
        loss_of(simulator, model, inputs[:1], targets[:1])  # refuses what does not fit
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    weights = {name: parameter.detach() for name, parameter in named.items()}

    def own_loss(current: dict[str, Tensor], record: Tensor, target: Tensor) -> Tensor:
        outputs = logits_of(torch.func.functional_call(model, current, (record[None],)))
        return simulator.loss(outputs, target[None]).sum()

    # Dropout draws a mask for each record, as it does in a batch.
    each = torch.func.vmap(torch.func.grad(own_loss), in_dims=(None, 0, 0), randomness="different")
    totals = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for start in range(0, len(inputs), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        try:
            slopes = each(weights, inputs[part], targets[part])
        except RuntimeError as problem:
            raise BadInput(
                "The gradients of single records cannot be computed for this network "
                f"({str(problem).splitlines()[0]}): private training needs layers that "
                "torch.func.vmap can handle."
            ) from problem
        rows = torch.cat([slope.flatten(1) for slope in slopes.values()], 1)
        norms = torch.linalg.vector_norm(rows, dim=1)
        kept = private.clipping_norm / norms.clamp_min(private.clipping_norm)
        for name, slope in slopes.items():
            totals[name] += torch.tensordot(kept, slope, 1)
    deviation = private.noise_multiplier * private.clipping_norm
    records = len(inputs) if simulator.reduction == "mean" else 1
    for name, parameter in named.items():
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.grad = (totals[name] + deviation * noise.to(parameter.device)) / records
