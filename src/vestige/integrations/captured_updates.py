"""Captured client updates of a federated training: files, and input for an inversion.

A folder holds, for each captured round, ``round-000001.weights.safetensors`` (the global weights
that were sent out) and, for each captured client, ``round-000001.client-001.update.safetensors``
(what ``vestige invert --update`` reads) and ``round-000001.client-001.json`` (the client, its
number of examples, its configuration). The JSON is written last: an update whose JSON exists is
complete.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn

from vestige.archive import load_observation, save_observation
from vestige.errors import BadInput, NotFound
from vestige.files import read_safetensors, save, tensor_bytes
from vestige.integrations.captured_steps import with_weights
from vestige.interfaces import Observation, Public, UpdateRelease
from vestige.records import Prior
from vestige.simulation.local_training import LocalTraining, Normalization
from vestige.simulation.losses import Loss, cross_entropy
from vestige.simulation.simulator import Mode, Reduction
from vestige.simulation.update import UpdateSimulator

Setting = bool | int | float | str | list[bool] | list[int] | list[float] | list[str]
"""What Flower can send in a configuration or a report, but for bytes, which are left out."""

_FACTS = re.compile(r"round-(\d{6,})\.client-(\d{3,})\.json")
CAPTURED_ROUND = re.compile(r"round-\d{6,}\..*")

_EPOCHS = ("local-epochs", "epochs", "num-epochs")
_STEPS = ("local-steps", "steps", "num-steps")
_RATES = ("learning-rate", "lr", "local-learning-rate", "local-lr")
_SIZES = ("batch-size", "local-batch-size", "batch")
_MOMENTA = ("momentum", "local-momentum")
_CHANGES = ("proximal-mu", "weight-decay", "nesterov")
"""Settings that change plain SGD, unless they are zero."""


class UpdateFacts(BaseModel):
    """What is known of one update beside its tensors; ``client`` is None for a mean of several."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    round: int
    client: str | None
    clients: int
    examples: int | None
    equal_shares: bool = True
    config: dict[str, Setting]
    report: dict[str, Setting]
    weights: str
    parameters: tuple[str, ...]
    buffers: tuple[str, ...] = ()


@dataclass(frozen=True)
class CapturedUpdate:
    """What a server saw of one client in one round, or of the mean of several clients.

    ``observation`` holds new minus old parameters and the number of examples as the batch size;
    ``weights`` are the global weights of the round, buffers included.
    """

    facts: UpdateFacts
    observation: Observation
    weights: Mapping[str, Tensor]

    def local_training(self) -> LocalTraining:
        """Read what the clients did from the configuration that they were sent.

        Epochs become steps by the number of examples of one client. Settings that are missing are
        asked for: nothing is guessed but a momentum of 0.
        """
        return local_training(self.facts)

    def model(self, like: nn.Module) -> nn.Module:
        """A copy of the model with the global weights of this round."""
        return with_weights(like, self.weights, f"round {self.facts.round}")

    def public(
        self,
        model: nn.Module,
        prior: Prior,
        *,
        local: LocalTraining | None = None,
        loss: Loss = cross_entropy,
        reduction: Reduction = "mean",
        mode: Mode = "train",
        normalization: Normalization | None = None,
    ) -> Public:
        """What ``vestige.invert`` takes beside the observation: the round, as it can be replayed.

        Without ``local``, the configuration that clients were sent is used. Clients that shuffle
        their records are replayed in a fixed order, which differs only where an epoch has several
        batches.
        """
        if self.facts.clients > 1 and not self.facts.equal_shares:
            raise BadInput(
                "The clients of this mean hold different numbers of examples, and a sum over "
                "clients is replayed for equal ones only: capture with aggregate=False, or give "
                "every client as many."
            )
        simulator = UpdateSimulator(
            self.model(model),
            loss,
            reduction,
            mode,
            normalization,
            local=self.local_training() if local is None else local,
            clients=self.facts.clients,
        )
        return Public(simulator, prior, reads=UpdateRelease)


@dataclass(frozen=True)
class CapturedRounds:
    """A folder of captured updates, each read when it is asked for."""

    folder: Path
    places: tuple[tuple[int, int], ...]
    """Round and place in it, of every update."""

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds that were captured."""
        return tuple(sorted({number for number, _ in self.places}))

    def of_round(self, number: int) -> tuple[CapturedUpdate, ...]:
        """Every captured update of one round."""
        if number not in self.rounds:
            rounds = ", ".join(map(str, self.rounds)) or "none"
            raise NotFound(f"Round {number} was not captured: choose from {rounds}.")
        return tuple(
            read_update(self.folder, number, place) for n, place in self.places if n == number
        )

    @property
    def updates(self) -> Iterator[CapturedUpdate]:
        """Every captured update, round after round, each read when its turn comes."""
        return (read_update(self.folder, number, place) for number, place in self.places)


def local_training(facts: UpdateFacts) -> LocalTraining:
    """Local SGD as the configuration of a round describes it."""
    settings = {name.lower().replace("_", "-"): value for name, value in facts.config.items()}
    for name in _CHANGES:
        if settings.get(name):
            raise BadInput(
                f"The clients were sent {name}={settings[name]}, which plain SGD does not use: "
                "give local=LocalTraining(…) if they ignore it; otherwise the clients cannot be "
                "simulated."
            )
    rate = _number(settings, _RATES, "a learning rate")
    size = _number(settings, _SIZES, "a batch size", needed=False)
    momentum = _number(settings, _MOMENTA, "a momentum", needed=False)
    steps = _number(settings, _STEPS, "a number of steps", needed=False)
    if steps is None:
        epochs = _number(settings, _EPOCHS, "a number of local epochs")
        assert epochs is not None
        batches = 1
        if size is not None and size > 0:
            if facts.examples is None:
                raise BadInput(
                    "The client did not say how many examples it has, so epochs cannot be "
                    "turned into steps: give local=LocalTraining(…)."
                )
            batches = max(1, math.ceil(facts.examples / facts.clients / size))
        steps = epochs * batches
    assert rate is not None
    return LocalTraining(
        steps=int(steps),
        learning_rate=float(rate),
        batch_size=None if not size or size < 0 else int(size),
        momentum=float(momentum or 0.0),
    )


def _number(
    settings: Mapping[str, Setting], names: tuple[str, ...], what: str, *, needed: bool = True
) -> float | None:
    for name in names:
        value = settings.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    if needed:
        known = ", ".join(settings) or "nothing"
        raise BadInput(
            f"The configuration that clients were sent ({known}) does not say {what}: give "
            f"local=LocalTraining(…), or capture with settings={{'{names[0]}': …}}."
        )
    return None


def load_captured_rounds(folder: str | Path) -> CapturedRounds:
    """Open a folder that a capture wrote, also one of a training that was killed."""
    folder = Path(folder)
    if not os.path.isdir(folder):
        raise NotFound(f"{folder} is no folder: give one that updates were captured to.")
    matches = (_FACTS.fullmatch(name) for name in os.listdir(folder))
    places = tuple(sorted((int(match[1]), int(match[2])) for match in matches if match))
    if not places:
        raise NotFound(f"{folder} holds no captured update: give one that holds some.")
    return CapturedRounds(folder, places)


def write_weights(folder: Path, number: int, weights: Mapping[str, Tensor], variant: int) -> str:
    """Write global weights of a round and return the name of their file.

    ``variant`` counts from 0 the different weights that one round sent to its clients.
    """
    name = f"round-{number:06d}.weights{f'-{variant}' if variant else ''}.safetensors"
    save(folder / name, tensor_bytes(weights, {"vestige-round": str(number)}))
    return name


def write_update(folder: Path, place: int, facts: UpdateFacts, observation: Observation) -> None:
    """Write one update, whole or not at all."""
    save_observation(observation, _path(folder, facts.round, place, "update.safetensors"))
    path = _path(folder, facts.round, place, "json")
    save(path, facts.model_dump_json(indent=1).encode())


def read_update(folder: Path, number: int, place: int) -> CapturedUpdate:
    """Read what :func:`write_update` wrote."""
    path = _path(folder, number, place, "json")
    try:
        facts = UpdateFacts.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise BadInput(
            f"{path} does not say which update it belongs to: give a folder that a capture wrote."
        ) from error
    observation = load_observation(_path(folder, number, place, "update.safetensors"))
    # A name from a file must not lead out of the folder.
    if Path(facts.weights).name != facts.weights:
        raise BadInput(f"{path} names weights outside of its folder: capture the training again.")
    weights, _ = read_safetensors(folder / facts.weights)
    whole = isinstance(observation.release, UpdateRelease) and facts.round == number
    if not whole or set(observation.release.tensors) != set(facts.parameters):
        raise BadInput(f"{path} and its tensors are not of one update: capture them again.")
    return CapturedUpdate(facts, observation, weights)


def _path(folder: Path, number: int, place: int, kind: str) -> Path:
    return folder / f"round-{number:06d}.client-{place:03d}.{kind}"
