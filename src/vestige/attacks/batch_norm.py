"""What a client's batch-norm buffers say about its batch.

Yin et al. 2021, "See through Gradients: Image Batch Recovery via GradInversion", Eq. 8: candidates
whose batch statistics, layer by layer, are those the client saw. Buffers hold a running average;
where the old value is known the batch's own statistics follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from vestige.simulation import Simulator


def statistics_penalty(
    simulator: Simulator, buffers: Mapping[str, Tensor]
) -> Callable[[Tensor], Tensor] | None:
    """Squared distance of batch means and variances x (batch, *shape) → scalar, as a share.

    None where the buffers hold no batch norm of this model.
    """
    wanted: dict[str, tuple[Tensor, Tensor]] = {}
    for name, module in simulator.model.named_modules():
        mean, variance = (buffers.get(f"{name}.running_{part}") for part in ("mean", "var"))
        if isinstance(module, _BatchNorm) and mean is not None and variance is not None:
            wanted[name] = (_seen(module, "mean", mean), _seen(module, "var", variance))
    if not wanted:
        return None
    scale = sum(mean.square().sum() + variance.square().sum() for mean, variance in wanted.values())

    def penalty(x: Tensor) -> Tensor:
        found: list[Tensor] = []

        def compare(name: str) -> Callable:
            mean, variance = wanted[name]

            def hook(_: object, inputs: tuple[Tensor, ...]) -> None:
                values = inputs[0].transpose(0, 1).flatten(1)
                found.append((values.mean(1) - mean).square().sum())
                found.append((values.var(1) - variance).square().sum())

            return hook

        hooks = [
            simulator.network.get_submodule(name).register_forward_pre_hook(compare(name))
            for name in wanted
        ]
        try:
            simulator.outputs(x)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.stack(found).sum() / scale

    return penalty


def _seen(module: _BatchNorm, part: str, after: Tensor) -> Tensor:
    """The batch's statistic behind a running average; the average itself if it did not move."""
    before = getattr(module, f"running_{part}")
    if before is None:
        return after
    after = after.detach().to(before)
    if module.momentum is None:
        share = 1.0 / (float(module.num_batches_tracked or 0) + 1.0)
    else:
        share = module.momentum
    if share <= 0 or torch.equal(after, before):
        return after
    return (after - (1 - share) * before) / share
