"""Captured steps of a private training: what is known of each, on disk and against an attack.

A folder holds ``mechanism.json`` (what ``vestige bounds --mechanism`` reads) and, for each step,
``step-000001.gradient.safetensors`` and ``step-000001.weights.safetensors`` (what ``vestige
invert`` and its ``--weights`` read). The weights are written first: a step whose gradient is there
is whole.
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
from vestige.bounds.mechanisms import Mechanism, mechanism_from_json, mechanism_to_json
from vestige.errors import BadInput, Conflict, NotFound
from vestige.files import (
    explained,
    read_document,
    read_safetensors,
    tensor_bytes,
    write_atomically,
)
from vestige.observations import GradientRelease, Observation, Public
from vestige.private_steps import ClippedNoise
from vestige.records import Prior
from vestige.simulation import Loss, Normalization, Reduction, Simulator, cross_entropy

_MECHANISM = "mechanism.json"
_FACTS = "vestige-captured-step"
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
        deviation = self.private.noise_multiplier * self.private.clipping_norm
        return deviation / self.expected_batch_size if self.reduction == "mean" else deviation

    def public(
        self,
        model: nn.Module,
        prior: Prior,
        *,
        loss: Loss = cross_entropy,
        normalization: Normalization | None = None,
    ) -> Public:
        """What ``vestige.invert`` takes beside the observation: the step, replayed but for noise.

        ``model`` is the one that was trained, as it was before Opacus wrapped it, with any weights.
        """
        network = copy.deepcopy(model)
        try:
            network.load_state_dict(dict(self.weights))
        except RuntimeError as error:
            said = str(error).splitlines()[-1].strip().rstrip(".")
            raise BadInput(
                f"The weights of step {self.number} do not fit the model ({said[:200]}): give the "
                "model that was trained, as it was before Opacus wrapped it."
            ) from error
        simulator = Simulator(
            network, loss, self.reduction, "train", normalization, clipped_noise=self.private
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
                f"Step {number} was not captured, {listed(self.numbers)} were: give one of them."
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
    return CapturedRun(folder, mechanism_from_json(text), captured_numbers(folder))


def captured_numbers(folder: Path) -> tuple[int, ...]:
    """The steps whose gradients a folder holds, in order."""
    found = (_GRADIENT.fullmatch(name) for name in os.listdir(folder))
    return tuple(sorted(int(match[1]) for match in found if match))


def prepare_folder(folder: Path) -> None:
    """Make a private folder for a capture; one that holds a capture is left as it is."""
    with explained(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        taken = (folder / _MECHANISM).exists() or captured_numbers(folder)
    if taken:
        raise Conflict(f"{folder} holds a capture already: name a new folder.")


def write_step(step: CapturedStep, folder: Path) -> None:
    """Write one step, whole or not at all."""
    facts = _Facts(
        number=step.number,
        clipping_norm=step.private.clipping_norm,
        noise_multiplier=step.private.noise_multiplier,
        sampling_rate=step.sampling_rate,
        expected_batch_size=step.expected_batch_size,
        reduction=step.reduction,
    )
    path = _path(folder, step.number, "weights")
    with explained(path):
        write_atomically(path, tensor_bytes(step.weights, {_FACTS: facts.model_dump_json()}))
    save_observation(step.observation, _path(folder, step.number, "gradient"))


def write_mechanism(mechanism: Mechanism, folder: Path) -> None:
    """Write what was done so far, in place of what was said before."""
    with explained(folder / _MECHANISM):
        write_atomically(folder / _MECHANISM, mechanism_to_json(mechanism).encode())


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


def listed(numbers: tuple[int, ...]) -> str:
    """Numbers of steps for a sentence."""
    if not numbers:
        return "none"
    return ", ".join(map(str, numbers[:5])) + (f", … {numbers[-1]}" if len(numbers) > 5 else "")


def _path(folder: Path, number: int, kind: str) -> Path:
    return folder / f"step-{number:06d}.{kind}.safetensors"
