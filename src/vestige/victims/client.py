"""What every client does before it trains: check its batch, copy its model, fix its randomness."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vestige.errors import BadInput
from vestige.records import Records
from vestige.simulation import Loss, Simulator, cross_entropy, logits_of, one_hot


def parameter_device(model: nn.Module) -> torch.device:
    """The device a model lives on."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def parameter_dtype(model: nn.Module) -> torch.dtype:
    """The precision a model computes in."""
    return next((p.dtype for p in model.parameters()), torch.float32)


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Let layers that draw from torch's global stream (dropout) follow ``generator`` for once."""
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def client_copy(simulator: Simulator) -> nn.Module:
    """A copy of the model in the mode the client trains in, batch norm and dropout included."""
    return copy.deepcopy(simulator.model).train(simulator.mode == "train")


def client_batch(simulator: Simulator, secret: Records) -> tuple[Tensor, Tensor]:
    """Inputs (normalised) and targets for ordinary training code, checked against the model."""
    if len(secret) == 0:
        raise BadInput("The batch is empty: a client needs at least one record.")
    model = simulator.model
    records = secret.to(parameter_device(model))
    inputs = records.x.to(parameter_dtype(model))
    if simulator.normalization is not None:
        inputs = simulator.normalization(inputs)
    return inputs, one_hot(records.y, secret.classes, inputs.dtype)


def loss_of(simulator: Simulator, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Reduced loss by ordinary training code; says plainly when shapes do not fit."""
    try:
        outputs = logits_of(model(inputs))
    except (RuntimeError, ValueError) as error:
        if "more than 1 value per channel" in str(error):
            raise BadInput(
                "Batch norm cannot train on a single record: use a larger batch, or mode='eval'."
            ) from error
        raise BadInput(
            f"The model does not accept records of shape {tuple(inputs.shape[1:])} "
            f"({str(error).splitlines()[0]}): check its input layer and the records' space."
        ) from error
    _check_logits(simulator.loss, outputs, targets)
    losses = simulator.loss(outputs, targets)
    return losses.mean() if simulator.reduction == "mean" else losses.sum()


def _check_logits(loss: Loss, outputs: Tensor, targets: Tensor) -> None:
    if loss is cross_entropy and outputs.shape != targets.shape:
        raise BadInput(
            f"The model returns {outputs.shape[-1]} logits, but the records have "
            f"{targets.shape[-1]} classes: a label would be out of range; make them equal."
        )
