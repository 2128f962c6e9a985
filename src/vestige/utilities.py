"""What a defence costs: training in which every release is made by the defended victim itself.

Liu, Wang, Chen and Lei 2025 compare defences by the loss of a model trained with each of them, from
single runs. Here training is repeated with seeds that all defences share: initial weights, order of
batches and the randomness of clients are the same for each, so that differences are paired.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from vestige import progress
from vestige.defenses import (
    Defense,
    innermost,
    with_model,
)
from vestige.engines import Engine, Unit, results
from vestige.errors import BadInput, VestigeError
from vestige.files import write_atomically
from vestige.observations import GradientRelease, UpdateRelease, Victim
from vestige.simulation import reinitialized
from vestige.streams import stream
from vestige.utility_training import (
    UtilityRun,
    UtilityTraining,
    trained_once,
)

FORMAT = 1
"""Part of a kept run's name: another way to train gets another number."""


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


def measure_utility(
    defense: Defense,
    victim: Victim,
    training: UtilityTraining,
    *,
    seed: int = 0,
    cache: Path | None = None,
) -> UtilityRuns:
    """Train with a defence once for each seed; runs kept in ``cache`` are not trained again.

    Raise BadInput where the defence does not fit the victim, or the victim's network the records.
    """
    defended, size = _defended(defense, victim, training)
    runs = []
    for repeat in range(training.repeats):
        one = _Training(defense, defended, victim, training, seed, repeat, size)
        path = None if cache is None else cache / f"{one.name}.json"
        run = None if path is None else _kept(path)
        if run is None:
            run = one.run()
            if path is not None:
                _keep(path, run.model_dump_json(indent=1).encode())
        runs.append(run)
    return UtilityRuns(tuple(runs))


def train_ahead(
    defenses: Sequence[Defense],
    victim: Victim,
    training: UtilityTraining,
    *,
    seed: int = 0,
    cache: Path,
    engine: Engine,
) -> None:
    """Let an engine's workers train what ``cache`` lacks: ``measure_utility`` finds it there.

    A training that cannot be done leaves nothing behind, and is for the caller to meet again.
    """
    missing = []
    for defense in defenses:
        try:
            defended, size = _defended(defense, victim, training)
            some = [
                _Training(defense, defended, victim, training, seed, repeat, size)
                for repeat in range(training.repeats)
            ]
            missing += [one for one in some if _kept(cache / f"{one.name}.json") is None]
        except BadInput:
            continue
    units = [Unit(one.name, number) for number, one in enumerate(missing)]
    with closing(results(engine, _Trainings(tuple(missing)), units)) as finished:
        for done, found in enumerate(finished):
            if found.content:
                _keep(cache / f"{found.unit.family}.json", found.content)
            progress.report(done + 1, len(units))


@dataclass(frozen=True)
class _Training:
    """One training with one seed; ``size`` is the number of records in a release."""

    defense: Defense
    defended: Victim
    victim: Victim
    training: UtilityTraining
    seed: int
    repeat: int
    size: int

    @cached_property
    def name(self) -> str:
        """Hash of all that decides what it gives."""
        model = _initial(self.victim, self.training, self.seed, self.repeat)
        return _content_name(self, model)

    def run(self) -> UtilityRun:
        """Train."""
        model = _initial(self.victim, self.training, self.seed, self.repeat)
        return trained_once(self.defended, model, self.training, self.size, self.seed, self.repeat)


@dataclass(frozen=True)
class _Trainings:
    """Trainings as units of an engine: the document of one, or nothing if it cannot be done."""

    trainings: tuple[_Training, ...]

    def __call__(self, number: int) -> bytes:
        try:
            return self.trainings[number].run().model_dump_json(indent=1).encode()
        except VestigeError:
            return b""


def _defended(defense: Defense, victim: Victim, training: UtilityTraining) -> tuple[Victim, int]:
    """The defended victim, and how many records one release of it needs."""
    if training.batch_size is None:
        raise BadInput("Say how many records a client's batch holds: batch_size of the training.")
    size = defense.records(training.batch_size)
    if size > len(training.records):
        raise BadInput(
            f"One release needs {size} records and there are {len(training.records)} to train on: "
            "give more, or smaller batches."
        )
    defended = defense(victim)
    _check_releases(defended)
    return defended, size


def _initial(victim: Victim, training: UtilityTraining, seed: int, repeat: int) -> nn.Module:
    model = victim.simulator.model
    if training.fresh_initialization:
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


def _content_name(one: _Training, model: nn.Module) -> str:
    """Hash of all that decides what a training gives; what code does is hashed by one release."""
    training, defended = one.training, one.defended
    first = training.records[: one.size]
    release = with_model(defended, model).release(first, generator=stream(one.seed, "utility name"))
    facts: list[Any] = [
        FORMAT,
        re.sub(r" at 0x[0-9a-fA-F]+", "", repr(one.defense)),
        defended.describe(),
        repr(model),
        {name: f"{float(t.double().norm()):.3g}" for name, t in release.tensors.items()},
        [training.rounds, training.clients, training.batch_size, training.learning_rate],
        [training.by, one.seed, one.repeat, one.size],
    ]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    for records in (training.records, training.held_out):
        digest.update("".join(records.fingerprints()).encode())
        digest.update(records.y.cpu().numpy().tobytes())
    return digest.hexdigest()[:32]


def _keep(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(path, content)


def _kept(path: Path) -> UtilityRun | None:
    """A run that was trained before; None if there is none, or it cannot be read."""
    try:
        return UtilityRun.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
