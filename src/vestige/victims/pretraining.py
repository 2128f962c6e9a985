"""Ordinary training, to audit a model after any number of steps."""

from __future__ import annotations

import copy

import torch
from torch import nn

from vestige.choices import (
    check_module,
    check_not_negative,
    check_object,
    check_positive,
    check_whole,
)
from vestige.errors import BadInput
from vestige.records import Records
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.local_training import Normalization
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
    check_module("model of trained", model)
    check_object("records of trained", records, Records)
    for name, value in (("steps", steps), ("batch_size", batch_size), ("seed", seed)):
        check_whole(f"{name} of trained", value)
    check_positive("learning_rate of trained", learning_rate)
    check_not_negative("momentum of trained", momentum)
    if steps < 0 or not 0 < batch_size <= len(records):
        raise BadInput(
            f"Training needs steps ≥ 0 and a batch size in 1 … {len(records)} (the records given)."
        )
    generator = torch.Generator().manual_seed(seed)
    simulator = GradientSimulator(copy.deepcopy(model), mode="train", normalization=normalization)
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
