"""Ordinary training, to audit a model after any number of steps."""

from __future__ import annotations

import copy

import torch
from torch import nn

from vestige.errors import BadInput
from vestige.records import Records
from vestige.simulation import Normalization, Simulator
from vestige.victims.client import client_batch, loss_of, seeded


def trained(
    model: nn.Module,
    records: Records,
    *,
    steps: int,
    learning_rate: float = 0.1,
    batch_size: int = 32,
    momentum: float = 0.0,
    normalization: Normalization | None = None,
    seed: int = 0,
) -> nn.Module:
    """Return a copy of the model after ``steps`` of SGD on random batches of the records.

    Train on records that are not secrets (``splits.held_out`` or another part): what the model
    remembers of a secret would be measured with the release.
    """
    if steps < 0 or not 0 < batch_size <= len(records):
        raise BadInput(
            f"Training needs steps ≥ 0 and a batch size in 1 … {len(records)} (the records given)."
        )
    generator = torch.Generator().manual_seed(seed)
    simulator = Simulator(copy.deepcopy(model), mode="train", normalization=normalization)
    simulator.model.train()
    optimizer = torch.optim.SGD(
        [p for p in simulator.model.parameters() if p.requires_grad],
        lr=learning_rate,
        momentum=momentum,
    )
    with seeded(generator):
        for _ in range(steps):
            chosen = torch.randperm(len(records), generator=generator)[:batch_size]
            inputs, targets = client_batch(simulator, records[chosen])
            optimizer.zero_grad()
            loss_of(simulator, simulator.model, inputs, targets).backward()
            optimizer.step()
    return simulator.model.train(model.training)
