"""DP-SGD on a head, by an ordinary loop and by Opacus: the same mechanism from two hands."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from vestige.errors import BadInput
from vestige.heads import HeadTraining

LossOfRecords = Callable[[nn.Module, Tensor], Tensor]
"""(head, members) → weighted loss of each of these records."""


def train_by_own_loop(
    head: nn.Module,
    training: HeadTraining,
    losses: LossOfRecords,
    *,
    generator: torch.Generator,
) -> None:
    """Every record's own backward pass, clipped, summed, noised."""
    private, parameters, records = training.private, list(head.parameters()), training.makeup.size
    assert private is not None
    assert private.clipping_norm is not None
    limit = private.clipping_norm
    for _ in range(private.steps):
        sampled = torch.rand(records, generator=generator) < private.sampling_rate
        total = [torch.zeros_like(p) for p in parameters]
        for member in torch.nonzero(sampled):
            slopes = torch.autograd.grad(losses(head, member).sum(), parameters)
            norm = torch.stack([g.square().sum() for g in slopes]).sum().sqrt()
            for sum_, slope in zip(total, slopes):
                sum_ += slope * (limit / norm.clamp_min(limit))
        expected = private.sampling_rate * records
        with torch.no_grad():
            for parameter, sum_ in zip(parameters, total):
                noise = torch.randn(sum_.shape, generator=generator).to(sum_)
                step = (sum_ + private.noise_multiplier * limit * noise) / expected
                parameter.mul_(training.decay).sub_(training.learning_rate * step)


def train_by_opacus(
    head: nn.Module,
    training: HeadTraining,
    losses: LossOfRecords,
    *,
    generator: torch.Generator,
) -> None:
    """Opacus' sampler, per-sample gradients and optimiser.

    Opacus divides by a gradient's norm plus 1e-6, so it clips that much harder than it says.
    """
    try:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer
        from opacus.utils.uniform_sampler import UniformWithReplacementSampler
    except ImportError as error:
        raise BadInput(
            "Training a head with Opacus needs Opacus, which is not installed: install "
            "vestige[dp], or set private_by='own loop'."
        ) from error
    private, records = training.private, training.makeup.size
    assert private is not None
    assert private.clipping_norm is not None
    wrapped = GradSampleModule(head, loss_reduction="sum")
    plain = torch.optim.SGD(
        wrapped.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay
    )
    optimizer = DPOptimizer(
        plain,
        noise_multiplier=private.noise_multiplier,
        max_grad_norm=private.clipping_norm,
        expected_batch_size=private.sampling_rate * records,  # pyright: ignore[reportArgumentType]
        generator=generator,
    )
    sampler = UniformWithReplacementSampler(
        num_samples=records,
        sample_rate=private.sampling_rate,
        steps=private.steps,
        generator=generator,
    )
    with warnings.catch_warnings():
        # Features need no gradient, which Opacus' hooks are told of at every step.
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        for members in sampler:
            optimizer.zero_grad()
            losses(wrapped, torch.tensor(members, dtype=torch.int64)).sum().backward()
            optimizer.step()
    wrapped.to_standard_module()
