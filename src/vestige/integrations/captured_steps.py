"""Captured steps of a private training: files, and input for an inversion.

A folder holds ``mechanism.json`` (what ``vestige bounds --mechanism`` reads) and, for each step,
``step-000001.gradient.safetensors`` and ``step-000001.weights.safetensors`` (what ``vestige
invert`` and its ``--weights`` read). The weights are written first: a step whose gradient exists
is complete.
"""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn

from vestige.archive import load_observation, save_observation
from vestige.errors import BadInput, Conflict, NotFound
from vestige.files import explain_errors, read_document, read_safetensors, save, tensor_bytes
from vestige.interfaces import GradientRelease, Observation, Public
from vestige.mechanisms import Mechanism, mechanism_from_json, mechanism_to_json
from vestige.records import Prior
from vestige.simulation.dp_sgd import ClippedNoise
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.local_training import Normalization
from vestige.simulation.losses import Loss, cross_entropy
from vestige.simulation.simulator import Reduction

_MECHANISM = "mechanism.json"
_FACTS = "vestige-captured-step"
_TAKEN = re.compile(r"mechanism\.json|step-\d{6,}\.gradient\.safetensors")
_GRADIENT = re.compile(r"step-(\d{6,})\.gradient\.safetensors")


@dataclass(frozen=True)
class CapturedStep:
    """One privatised gradient and what a server that follows the training knows beside it.

    ``observation`` holds the gradient as the optimizer takes it: clipped, summed, noised, and
    divided by ``expected_batch_size`` where ``reduction`` is a mean. ``weights`` are the state of
    the model before the step. Poisson samples have no fixed size, so the hint on the batch size is
    the expected one.
    """

    number: int
    observation: Observation
    weights: Mapping[str, Tensor]
    private: ClippedNoise
    sampling_rate: float
    expected_batch_size: float
    reduction: Reduction

    @property
    def noise_deviation(self) -> float:
        """Standard deviation of the noise in every number of the released gradient."""
        deviation = self.private.deviation
        return deviation / self.expected_batch_size if self.reduction == "mean" else deviation

    def public(
        self,
        model: nn.Module,
        prior: Prior,
        *,
        loss: Loss = cross_entropy,
        normalization: Normalization | None = None,
    ) -> Public:
        """What ``vestige.invert`` takes beside the observation: the step without its noise.

        ``model`` is the one that was trained, as it was before Opacus wrapped it, with any weights.
        """
        network = with_weights(model, self.weights, f"step {self.number}")
        simulator = GradientSimulator(
            network, loss, self.reduction, "train", normalization, self.private
        )
        return Public(simulator, prior, reads=GradientRelease)


@dataclass(frozen=True)
class CapturedRun:
    """A folder of captured steps, read when asked for: no more than one step is in memory."""

    folder: Path
    mechanism: Mechanism
    """All steps that had been taken when the folder was last written to, captured or not."""
    numbers: tuple[int, ...]

    def step(self, number: int) -> CapturedStep:
        """Read one captured step."""
        if number not in self.numbers:
            raise NotFound(
                f"Step {number} was not captured: choose from {format_numbers(self.numbers)}."
            )
        return read_step(self.folder, number)

    @property
    def observations(self) -> Iterator[Observation]:
        """What was seen, step after step, each read when its turn comes."""
        return (self.step(number).observation for number in self.numbers)


class _Facts(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    number: int
    clipping_norm: float
    noise_multiplier: float
    sampling_rate: float
    expected_batch_size: float
    reduction: Reduction


def load_captured_run(folder: str | Path) -> CapturedRun:
    """Open a folder that a capture wrote, also one of a training that was killed."""
    folder = Path(folder)
    if not os.path.isdir(folder):
        raise NotFound(f"{folder} is no folder: give one that a capture was saved to.")
    try:
        text = read_document(folder / _MECHANISM).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(
            f"{folder} holds no readable {_MECHANISM}: give a folder that a capture was saved to."
        ) from error
    return CapturedRun(folder, mechanism_from_json(text), step_numbers(folder))


def step_numbers(folder: Path) -> tuple[int, ...]:
    """The steps whose gradients a folder holds, in order."""
    matches = (_GRADIENT.fullmatch(name) for name in os.listdir(folder))
    return tuple(sorted(int(match[1]) for match in matches if match))


def prepare_folder(folder: Path, taken: re.Pattern[str] = _TAKEN) -> None:
    """Create a private folder for a capture; refuse one with files of a capture (``taken``)."""
    with explain_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = os.listdir(folder)
    if any(taken.fullmatch(name) for name in names):
        raise Conflict(f"{folder} holds a capture already: choose a new folder.")


def with_weights(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> nn.Module:
    """A copy of the model with captured weights; ``source`` names them in errors."""
    network = copy.deepcopy(model)
    try:
        network.load_state_dict(dict(weights))
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip().rstrip(".")
        raise BadInput(
            f"The weights of {source} do not fit the model ({reason[:200]}): give the model that "
            "was trained, as it was before Opacus or Flower wrapped it."
        ) from error
    return network


def write_step(step: CapturedStep, folder: Path) -> None:
    """Write one step."""
    facts = _Facts(
        number=step.number,
        clipping_norm=step.private.clipping_norm,
        noise_multiplier=step.private.noise_multiplier,
        sampling_rate=step.sampling_rate,
        expected_batch_size=step.expected_batch_size,
        reduction=step.reduction,
    )
    path = _path(folder, step.number, "weights")
    save(path, tensor_bytes(step.weights, {_FACTS: facts.model_dump_json()}))
    save_observation(step.observation, _path(folder, step.number, "gradient"))


def write_mechanism(mechanism: Mechanism, folder: Path) -> None:
    """Write the mechanism of all steps so far."""
    save(folder / _MECHANISM, mechanism_to_json(mechanism).encode())


def read_step(folder: Path, number: int) -> CapturedStep:
    """Read what :func:`write_step` wrote."""
    path = _path(folder, number, "weights")
    weights, metadata = read_safetensors(path)
    try:
        facts = _Facts.model_validate_json(metadata.get(_FACTS, ""))
    except ValidationError as error:
        raise BadInput(
            f"{path} does not say which step it belongs to: give a folder that a capture wrote."
        ) from error
    gradient = _path(folder, number, "gradient")
    observation = load_observation(gradient)
    if facts.number != number or not isinstance(observation.release, GradientRelease):
        raise BadInput(f"{gradient} and {path} are not of one step: capture the training again.")
    if not (0 < facts.expected_batch_size < math.inf and 0 < facts.sampling_rate <= 1):
        raise BadInput(
            f"{path} says a batch of {facts.expected_batch_size:g} at the sampling rate "
            f"{facts.sampling_rate:g}, which no training has: capture it again."
        )
    return CapturedStep(
        number,
        observation,
        weights,
        ClippedNoise(facts.clipping_norm, facts.noise_multiplier),
        facts.sampling_rate,
        facts.expected_batch_size,
        facts.reduction,
    )


def format_numbers(numbers: tuple[int, ...]) -> str:
    """Numbers of steps for a sentence."""
    if not numbers:
        return "none"
    return ", ".join(map(str, numbers[:5])) + (f", … {numbers[-1]}" if len(numbers) > 5 else "")


def _path(folder: Path, number: int, kind: str) -> Path:
    return folder / f"step-{number:06d}.{kind}.safetensors"
