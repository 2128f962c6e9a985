"""Small Opacus trainings whose batches are known, and the same gradients by a plain loop."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from vestige.integrations.opacus import Capture
from worlds import draws, linear_network

MODES = ("hooks", "functorch", "ew", "ghost")


@dataclass
class Training:
    """One run of DP-SGD: what Opacus returned, the capture, and the batches that it saw."""

    network: nn.Module
    model: nn.Module
    optimizer: object
    capture: Capture | None
    accountant: object
    batches: list = field(default_factory=list)


def train(
    *,
    noise_multiplier=1.0,
    clipping_norm=1.0,
    batch_size=5,
    mode="hooks",
    epochs=1,
    captured=True,
    silent=False,
    records=40,
    learning_rate=0.1,
    seed=0,
    poisson_sampling=True,
    physical=None,
    clipping="flat",
    reduction="mean",
    **settings,
) -> Training:
    """Train on a few patches; ``silent`` multiplies the loss by zero, so that only noise is left.

    ``physical`` splits batches by Opacus' BatchMemoryManager.
    """
    from opacus import PrivacyEngine
    from opacus.utils.batch_memory_manager import wrap_data_loader

    secret, network = draws(records, 1), linear_network()
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        engine = PrivacyEngine()
        made = engine.make_private(
            module=network,
            optimizer=torch.optim.SGD(network.parameters(), lr=learning_rate),
            criterion=nn.CrossEntropyLoss(reduction=reduction),
            data_loader=DataLoader(TensorDataset(secret.x, secret.y), batch_size=batch_size),
            noise_multiplier=noise_multiplier,
            max_grad_norm=clipping_norm,
            grad_sample_mode=mode,
            poisson_sampling=poisson_sampling,
            clipping=clipping,
            loss_reduction=reduction,
        )
        model, optimizer, loader = made[0], made[1], made[-1]
        loss = made[2] if mode == "ghost" else nn.CrossEntropyLoss(reduction=reduction)
        if mode == "ew":
            settings.setdefault("poisson_sampling", poisson_sampling)
        capture = Capture(optimizer, model, **settings) if captured else None
        run = Training(network, model, optimizer, capture, engine.accountant)
        if physical is not None:
            loader = wrap_data_loader(
                data_loader=loader, max_batch_size=physical, optimizer=optimizer
            )
        for _ in range(epochs):
            for x, y in loader:
                run.batches.append((x, y))
                optimizer.zero_grad()
                outputs = model(x)
                loss(0 * outputs if silent else outputs, y).backward()
                optimizer.step()
    return run


def clipped_sum(weights, x, y, clipping_norm) -> dict[str, torch.Tensor]:
    """Every record's own backward pass, cut to the clipping norm and added up."""
    network = linear_network()
    network.load_state_dict(dict(weights))
    total = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    for record, label in zip(x, y):
        network.zero_grad()
        nn.functional.cross_entropy(network(record[None]), label[None]).backward()
        own = {name: p.grad.clone() for name, p in network.named_parameters()}
        norm = torch.cat([g.flatten() for g in own.values()]).norm()
        for name, gradient in own.items():
            total[name] += gradient * min(1.0, clipping_norm / float(norm))
    return total
