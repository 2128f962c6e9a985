"""What clients do: check a batch, copy the model, fix randomness, train with SGD or DP-SGD."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from vestige.choices import describe_value
from vestige.errors import BadInput
from vestige.networks.token_model import TokenModel, predicts_tokens
from vestige.records import Records
from vestige.simulation.dp_sgd import ClippedNoise, clipping_factors
from vestige.simulation.each_record import each_gradient
from vestige.simulation.losses import cross_entropy, logits_of, one_hot
from vestige.simulation.network import NetworkSimulator
from vestige.simulation.refusals import refusal, refusing
from vestige.simulation.replayed_network import without_recomputation
from vestige.simulation.simulator import Simulator
from vestige.simulation.update import UpdateSimulator

AT_ONCE = 256
"""Records whose gradients are held in memory at the same time."""


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Let layers that draw from torch's global stream (dropout) follow ``generator`` for once."""
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def client_copy(simulator: Simulator) -> nn.Module:
    """A copy of the model in the mode the client trains in, batch norm and dropout included."""
    copied = copy.deepcopy(simulator.model).train(simulator.mode == "train")
    return without_recomputation(copied)


def client_batch(simulator: Simulator, secret: Records) -> tuple[Tensor, Tensor]:
    """Inputs (normalised) and targets for ordinary training code, checked against the model."""
    if len(secret) == 0:
        raise BadInput("The batch is empty: a client needs at least one record.")
    like = next(simulator.model.parameters(), torch.zeros(()))
    targets = one_hot(secret.y.to(like.device), secret.classes, like.dtype)
    return simulator.inputs(secret.inputs(like)), targets


def loss_of(simulator: Simulator, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Reduced loss by ordinary training code; says plainly when shapes do not fit."""
    try:
        outputs = logits_of(model(inputs))
    except (RuntimeError, ValueError) as error:
        said = refusal(error)
        if said is not None:
            raise BadInput(said) from error
        if "'indices'" in str(error) and not isinstance(model, TokenModel):
            raise BadInput(
                "The model looks up token numbers, and records hold floating point: wrap it in "
                "vestige.networks.TokenModel."
            ) from error
        raise BadInput(
            f"The model does not accept records of shape {tuple(inputs.shape[1:])} "
            f"({str(error).splitlines()[0]}): check its input layer and the records' space."
        ) from error
    if simulator.loss is cross_entropy and predicts_tokens(model):
        raise BadInput(
            "A language model computes the loss of its texts itself: give the victim loss=own_loss "
            "(from vestige.networks import own_loss)."
        )
    losses = simulator.loss(outputs, targets)
    _check_losses(losses, outputs)
    return simulator.reduced(losses)


def _check_losses(losses: object, outputs: Tensor) -> None:
    if not isinstance(losses, Tensor) or losses.shape != outputs.shape[:1]:
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else describe_value(losses)
        raise BadInput(
            f"The loss returned {shape} for {len(outputs)} records: it must return one value for "
            "each (in torch's losses say reduction='none'); the victim's reduction joins them."
        )


def joined(known: Records, secret: Records) -> Records:
    """All training records in their fixed order: the known ones, then the secret."""
    if known.space != secret.space:
        raise BadInput(
            "The known records and the secret describe different spaces: take them from one "
            "dataset."
        )
    moved = known.to(secret.x.device)
    x = torch.cat([moved.x.to(secret.x.dtype), secret.x])
    return replace(known, x=x, y=torch.cat([moved.y, secret.y]))


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

    def own_loss(current: Mapping[str, Tensor], record: Tensor, target: Tensor) -> Tensor:
        outputs = logits_of(torch.func.functional_call(model, dict(current), (record[None],)))
        return simulator.loss(outputs, target[None]).sum()

    totals = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for start in range(0, len(inputs), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        # Dropout draws a mask for each record, as it does in a batch.
        slopes = each_gradient(
            own_loss, weights, inputs[part], targets[part], randomness="different"
        )
        rows = torch.cat([slope.flatten(1) for slope in slopes.values()], 1)
        norms = torch.linalg.vector_norm(rows, dim=1)
        kept = clipping_factors(norms, private.clipping_norm)
        for name, slope in slopes.items():
            totals[name] += torch.tensordot(kept, slope, 1)
    records = len(inputs) if simulator.reduction == "mean" else 1
    for name, parameter in named.items():
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.grad = (totals[name] + private.deviation * noise.to(parameter.device)) / records


def train_by_sgd(
    simulator: UpdateSimulator | NetworkSimulator,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    reshuffle: bool = False,
    generator: torch.Generator,
) -> None:
    """Train a model as a simulator describes; ``reshuffle`` draws a new order at every epoch."""
    local, private = simulator.local, simulator.clipped_noise
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=local.learning_rate, momentum=local.momentum)
    order = torch.arange(len(inputs))
    with seeded(generator):
        for batch in local.batches(len(inputs)):
            if reshuffle and batch.start == 0:
                order = torch.randperm(len(inputs), generator=generator)
            optimizer.zero_grad()
            some, taught = inputs[order[batch]], targets[order[batch]]
            if private is None:
                with refusing():
                    loss_of(simulator, model, some, taught).backward()
            else:
                set_private_gradients(simulator, model, some, taught, private, generator=generator)
            optimizer.step()
