"""What a defence costs: training in which every release is made by the defended victim itself.

Liu, Wang, Chen and Lei 2025 compare defences by the loss of a model trained with each of them, from
single runs. Here training is repeated with seeds that all defences share: initial weights, order of
batches and the randomness of clients are the same for each, so that differences are paired.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from vestige import progress
from vestige.choices import check_fields
from vestige.content import combined_digest, tensors_digest
from vestige.defenses.defended_victims import (
    innermost,
    mean_release,
    new_memory,
    rebuild,
    release_in_round,
    with_model,
)
from vestige.errors import BadInput, VestigeError
from vestige.interfaces import GradientRelease, Release, UpdateRelease, Victim
from vestige.networks.token_model import TokenModel, predicts_tokens
from vestige.records import Records
from vestige.reports.document import Document
from vestige.simulation.kinds import client_simulator
from vestige.simulation.losses import logits_of, one_hot
from vestige.simulation.network import reinitialized
from vestige.simulation.simulator import Simulator
from vestige.streams import stream
from vestige.victims.opacus_client import OpacusClient

if TYPE_CHECKING:
    from vestige.interfaces import Defense


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
        check_fields(self)
        if not isinstance(self.records, Records) or not isinstance(self.held_out, Records):
            raise BadInput("Utility is trained on Records and measured on held-out Records.")
        size = 1 if self.batch_size is None else self.batch_size
        if min(self.rounds, self.clients, self.evaluation_batch, size) < 1:
            raise BadInput("Rounds, clients and batch sizes of utility training are at least 1.")
        if self.repeats < 2:
            raise BadInput("Limits of a utility need at least two seeds: set repeats to 2 or more.")
        if not 0 < self.learning_rate < math.inf:
            raise BadInput(f"A learning rate is positive and finite, not {self.learning_rate!r}.")
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
    """Share of records whose class a model names, and its mean loss, in eval mode.

    Of a language model it is the share of tokens that it ranks first after those before them.
    """
    like = next(model.parameters())
    right = total = 0.0
    with torch.no_grad():
        was_training = model.training
        model.eval()
        for start in range(0, len(records), at_once):
            part = records[start : start + at_once].to(like.device)
            inputs = part.inputs(like)
            if simulator.normalization is not None:
                inputs = simulator.normalization(inputs)
            outputs = logits_of(model(inputs))
            if isinstance(model, TokenModel) and predicts_tokens(model):
                right += len(part) * model.accuracy(inputs)
            else:
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
        current = rebuild(current, OpacusClient)
    memories: dict[int, Any] = {}
    sent_in_round, order = _releases(defended, training), stream(seed, "utility order", repeat)
    for number, batches in enumerate(_rounds(training, size, sent_in_round, order)):
        sent = []
        for place, batch in enumerate(batches):
            generator = stream(seed, "utility release", repeat, number, place)
            if place not in memories:
                memories[place] = new_memory(current)
            try:
                memory = memories[place]
                sent.append(release_in_round(current, batch, memory, generator=generator))
            except VestigeError as problem:
                if number == 0:
                    raise
                return _diverged(repeat, f"round {number + 1}: {problem}")
        move(model, mean_release(sent), training.learning_rate)
        progress.report(number + 1, training.rounds)
        if not all(bool(p.isfinite().all()) for p in model.parameters()):
            return _diverged(repeat, f"round {number + 1}: the weights are not finite")
    accuracy, loss = evaluated(simulator, model, training.held_out, training.evaluation_batch)
    if not math.isfinite(loss) or loss > FAR_ABOVE * initial:
        return _diverged(repeat, "the held-out loss is far above that of the initial model")
    return UtilityRun(repeat=repeat, accuracy=accuracy, loss=loss)


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
    return math.ceil(training.clients / client_simulator(defended.simulator).clients)


def _diverged(repeat: int, reason: str) -> UtilityRun:
    return UtilityRun(repeat=repeat, accuracy=None, loss=None, diverged=True, reason=reason)


@dataclass(frozen=True)
class UtilityRuns:
    """The trainings of one defence, one for each seed, in the order of seeds.

    ``problem`` says why there are none.
    """

    runs: tuple[UtilityRun, ...] = ()
    problem: str = ""

    @property
    def diverged(self) -> int:
        """How many diverged."""
        return sum(run.diverged for run in self.runs)


@dataclass(frozen=True)
class DefendedTraining:
    """Training of a victim's model with a defence; one release of it takes ``size`` records."""

    defense: Defense
    victim: Victim
    training: UtilityTraining
    defended: Victim
    size: int

    @classmethod
    def of(cls, defense: Defense, victim: Victim, training: UtilityTraining) -> DefendedTraining:
        """Raise BadInput where the defence does not fit the victim, or the records it."""
        if training.batch_size is None:
            raise BadInput(
                "Say how many records a client's batch holds: batch_size of the training."
            )
        size = defense.records(training.batch_size)
        if size > len(training.records):
            raise BadInput(
                f"One release needs {size} records and there are {len(training.records)} to train "
                "on: give more, or smaller batches."
            )
        defended = defense(victim)
        _check_releases(defended)
        return cls(defense, victim, training, defended, size)

    def run(self, seed: int, repeat: int) -> UtilityRun:
        """Train once; defences share the randomness of a repeat."""
        model = self._initial(seed, repeat)
        return trained_once(self.defended, model, self.training, self.size, seed, repeat)

    def identity(self) -> str:
        """Digest of all that decides what it gives; what code does is hashed by one release."""
        training, model = self.training, self._initial(0, 0)
        first = training.records[: self.size]
        release = with_model(self.defended, model).release(
            first, generator=stream(0, "utility name")
        )
        facts: list[Any] = [
            re.sub(r" at 0x[0-9a-fA-F]+", "", repr(self.defense)),
            self.defended.describe(),
            repr(model),
            {name: f"{float(t.double().norm()):.3g}" for name, t in release.tensors.items()},
            [training.rounds, training.clients, training.batch_size, training.learning_rate],
            [training.evaluation_batch, training.fresh_initialization, training.by, self.size],
        ]
        parts = (training.records, training.held_out)
        tensors = dict(self.victim.simulator.model.state_dict())
        tensors |= {f"labels/{number}": part.y for number, part in enumerate(parts)}
        marks = ("".join(part.fingerprints()) for part in parts)
        return combined_digest(json.dumps(facts, sort_keys=True), *marks, tensors_digest(tensors))

    def _initial(self, seed: int, repeat: int) -> nn.Module:
        model = self.victim.simulator.model
        if self.training.fresh_initialization:
            return reinitialized(model, stream(seed, "utility weights", repeat))
        return copy.deepcopy(model)


def _check_releases(victim: Victim) -> None:
    if victim.releases not in (GradientRelease, UpdateRelease) or not hasattr(
        innermost(victim), "model"
    ):
        raise BadInput(
            "Utility is measured by training with what clients send: give a victim that sends "
            "gradients or updates of its model, such as SharedGradient."
        )
