"""Training in which every release is made by the defended victim itself, round after round."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from vestige import progress
from vestige.alterations import ClientMemory
from vestige.defenses import (
    AggregatedClients,
    AlteredVictim,
    innermost,
    mean_release,
    with_model,
)
from vestige.defenses.defended_victims import rebuilt
from vestige.errors import BadInput, VestigeError
from vestige.observations import GradientRelease, Release, Victim
from vestige.record import Document
from vestige.records import Records
from vestige.simulation import Simulator, logits_of, one_hot
from vestige.streams import stream
from vestige.victims.opacus_client import OpacusClient

FAR_ABOVE = 10.0
"""A held-out loss of so many times the initial model's is that of a training which diverged."""


@dataclass(frozen=True)
class UtilityTraining:
    """How the cost of a defence is measured: training on ``records``, worth on ``held_out`` ones.

    In each of ``rounds`` rounds ``clients`` clients release something of ``batch_size`` records
    each (None: as many as are audited), and the server moves along the mean: by ``learning_rate``
    for gradients, by the mean itself for updates. A defence that sums over clients sums over those
    of the round; one that needs more of them makes the round larger. Rounds stay the same, so a
    larger batch sees more records. ``fresh_initialization`` draws initial weights for each of
    ``repeats`` seeds; without it all start from the victim's. ``by`` says who computes DP-SGD's
    clipping and noise: the victim, or Opacus.
    """

    records: Records
    held_out: Records
    rounds: int = 100
    clients: int = 4
    batch_size: int | None = None
    learning_rate: float = 0.1
    repeats: int = 3
    evaluation_batch: int = 512
    fresh_initialization: bool = True
    by: Literal["victim", "opacus"] = "victim"

    def __post_init__(self) -> None:
        if not isinstance(self.records, Records) or not isinstance(self.held_out, Records):
            raise BadInput("Utility is trained on Records and measured on held-out Records.")
        size = 1 if self.batch_size is None else self.batch_size
        if min(self.rounds, self.clients, self.evaluation_batch, size) < 1:
            raise BadInput("Rounds, clients and batch sizes of utility training are at least 1.")
        if self.repeats < 2:
            raise BadInput("Limits of a utility need at least two seeds: set repeats to 2 or more.")
        if not 0 < self.learning_rate < math.inf:
            raise BadInput(f"A learning rate is positive and finite, not {self.learning_rate!r}.")
        if self.by not in ("victim", "opacus"):
            raise BadInput(f"Training is done by 'victim' or by 'opacus', not {self.by!r}.")
        if not len(self.records) or not len(self.held_out):
            raise BadInput("Utility needs records to train on and held-out ones to measure it on.")
        shared = set(self.records.fingerprints()) & set(self.held_out.fingerprints())
        if shared:
            raise BadInput(
                f"{len(shared)} held-out records are also trained on: split one dataset with "
                "Records.split, which keeps the parts disjoint."
            )


class UtilityRun(Document):
    """One training with one seed. A run that diverged has neither accuracy nor loss."""

    repeat: int
    accuracy: float | None
    loss: float | None
    diverged: bool = False
    reason: str = ""


def evaluated(
    simulator: Simulator, model: nn.Module, records: Records, at_once: int
) -> tuple[float, float]:
    """Share of records whose class a model names, and its mean loss, in eval mode."""
    like = next(model.parameters())
    right = total = 0.0
    with torch.no_grad():
        was_training = model.training
        model.eval()
        for start in range(0, len(records), at_once):
            part = records[start : start + at_once].to(like.device)
            inputs = part.x.to(like.dtype)
            if simulator.normalization is not None:
                inputs = simulator.normalization(inputs)
            outputs = logits_of(model(inputs))
            right += float((outputs.argmax(1) == part.y).sum())
            total += float(
                simulator.loss(outputs, one_hot(part.y, part.classes, outputs.dtype)).sum()
            )
        model.train(was_training)
    return right / len(records), total / len(records)


def trained_once(
    defended: Victim,
    model: nn.Module,
    training: UtilityTraining,
    size: int,
    seed: int,
    repeat: int,
) -> UtilityRun:
    """Train ``model``, in place, on what a defended victim releases of ``size`` records each."""
    simulator = defended.simulator
    _, initial = evaluated(simulator, model, training.held_out, training.evaluation_batch)
    # Clients copy the model they are given: moving its weights is all the server has to do.
    current = with_model(defended, model)
    if training.by == "opacus" and getattr(innermost(defended), "private", None) is not None:
        current = rebuilt(current, OpacusClient)
    memories: dict[tuple[int, int], ClientMemory] = {}
    sent_in_round, order = _releases(defended, training), stream(seed, "utility order", repeat)
    for number, batches in enumerate(_rounds(training, size, sent_in_round, order)):
        sent = []
        for place, batch in enumerate(batches):
            generator = stream(seed, "utility release", repeat, number, place)
            try:
                sent.append(_released(current, batch, memories, place, generator))
            except VestigeError as problem:
                if number == 0:
                    raise
                return _diverged(repeat, f"round {number + 1}: {problem}")
        move(model, mean_release(sent), training.learning_rate)
        progress.report(repeat * training.rounds + number + 1, training.repeats * training.rounds)
        if not all(bool(p.isfinite().all()) for p in model.parameters()):
            return _diverged(repeat, f"round {number + 1}: the weights are not finite")
    accuracy, loss = evaluated(simulator, model, training.held_out, training.evaluation_batch)
    if not math.isfinite(loss) or loss > FAR_ABOVE * initial:
        return _diverged(repeat, "the held-out loss is far above that of the initial model")
    return UtilityRun(repeat=repeat, accuracy=accuracy, loss=loss)


def _released(
    defended: Victim,
    batch: Records,
    memories: dict[tuple[int, int], ClientMemory],
    place: int,
    generator: torch.Generator,
    client: int = 0,
) -> Release:
    """What leaves, with what every client remembers of earlier rounds."""
    if isinstance(defended, AggregatedClients):
        size = len(batch) // defended.clients
        parts = [batch[start : start + size] for start in range(0, len(batch), size)]
        return mean_release(
            [
                _released(defended.victim, part, memories, place, generator, index)
                for index, part in enumerate(parts)
            ]
        )
    if isinstance(defended, AlteredVictim):
        memory = memories.setdefault((place, client), ClientMemory())
        return defended.remembered(batch, memory, generator=generator)
    return defended.release(batch, generator=generator)


def move(model: nn.Module, release: Release, learning_rate: float) -> None:
    """Move a model's weights along a mean release, in place; buffers become the mean ones."""
    scale = -learning_rate if isinstance(release, GradientRelease) else 1.0
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    with torch.no_grad():
        for name, tensor in release.tensors.items():
            parameters[name].add_(tensor.to(parameters[name]), alpha=scale)
        for name, tensor in release.buffers.items():
            buffers[name].copy_(tensor)


def _rounds(
    training: UtilityTraining, size: int, releases: int, generator: torch.Generator
) -> Iterator[list[Records]]:
    """The batches of every round, one for each release: epochs in random order, one by one."""
    waiting = torch.empty(0, dtype=torch.int64)
    for _ in range(training.rounds):
        dealt = []
        for _ in range(releases):
            while len(waiting) < size:
                order = torch.randperm(len(training.records), generator=generator)
                waiting = torch.cat([waiting, order])
            dealt.append(training.records[waiting[:size]])
            waiting = waiting[size:]
        yield dealt


def _releases(defended: Victim, training: UtilityTraining) -> int:
    """Releases in a round: a sum over clients makes several of them one."""
    together = defended.clients if isinstance(defended, AggregatedClients) else 1
    return math.ceil(training.clients / together)


def _diverged(repeat: int, reason: str) -> UtilityRun:
    return UtilityRun(repeat=repeat, accuracy=None, loss=None, diverged=True, reason=reason)
