"""A captured release as a user describes it on the command line, turned into an observation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from vestige.archive import load_captured
from vestige.datasets import load
from vestige.errors import BadInput
from vestige.observations import (
    GradientSequenceRelease,
    Hints,
    ModelRelease,
    Observation,
    Public,
    UpdateRelease,
)
from vestige.private_steps import ClippedNoise
from vestige.records import Column, ImageSpace, Prior, Records, Space, TableSpace
from vestige.simulation import LocalTraining, Normalization, Simulator
from vestige.streams import stream
from vestige.user_code import load_model

MOST_VALUES = 2**28
"""Most numbers of a batch of records: a gigabyte, which attacks hold many times over."""

NOISE_RECORDS = 64
"""Records of noise that stand for a prior where there is none."""

MOST_CLASSES = 100_000
"""Most classes: every one has a name, and no classifier has more."""


@dataclass(frozen=True)
class Capture:
    """A captured release and what is known about where it came from, as typed by a user."""

    gradient: Path
    model: str
    weights: Path | None = None
    shape: str = ""
    classes: int = 0
    prior: str = ""
    batch_size: int | None = None
    labels: str = ""
    mean: str = ""
    std: str = ""
    mode: str = "train"
    reduction: str = "mean"
    clipping_norm: float = 0.0
    noise_multiplier: float = 0.0
    update: bool = False
    local_steps: int = 1
    local_batch_size: int = 0
    learning_rate: float = 0.0
    momentum: float = 0.0

    @cached_property
    def held(self) -> Observation:
        """What the file holds; hints only if it says them itself."""
        held = load_captured(self.gradient, update=self.update)
        if isinstance(held.release, ModelRelease):
            raise BadInput(
                f"{self.gradient} holds a trained model, no gradient: audit it from Python, with "
                "vestige.missing_record or an Audit against an InformedAdversary."
            )
        if isinstance(held.release, GradientSequenceRelease):
            raise BadInput(
                f"{self.gradient} holds the gradients of a private training: audit it from Python, "
                "with PriorMatching against an InformedAdversary."
            )
        if isinstance(held.release, UpdateRelease) != self.update:
            kind = "a gradient" if self.update else "an update"
            remedy = "leave --update out" if self.update else "say --update and --learning-rate"
            raise BadInput(f"{self.gradient} says that it is {kind}: {remedy}.")
        for name, tensor in held.release.tensors.items():
            if not tensor.is_floating_point():
                kind = str(tensor.dtype).removeprefix("torch.")
                raise BadInput(
                    f"{name!r} in {self.gradient} is {kind}, and a {self._kind} is floating point: "
                    "save the tensors as they are in param.grad."
                )
        return held

    @cached_property
    def public(self) -> Public:
        """What the attacker knows."""
        release = type(self.held.release)
        simulator = self._simulator()
        if self.prior:
            prior = Prior(load(self.prior))
            if self.shape and _space(self.shape, 1).shape != prior.space.shape:
                raise BadInput(
                    f"--shape {self.shape} is not the shape of {self.prior}, "
                    f"{_listed(prior.space.shape)}: leave one of the two out."
                )
            _check_fit(simulator, prior.space, self._size)
        else:
            space = self._space(simulator)
            _check_fit(simulator, space, self._size)
            prior = noise_prior(space)
        return Public(simulator, prior, reads=release)

    @cached_property
    def observation(self) -> Observation:
        """What the attacker sees, on the device and in the precision of the model."""
        labels = self.held.hints.labels
        if self.labels:
            typed = _integers(self.labels, "--labels")
            labels = torch.tensor([min(max(label, -1), MOST_CLASSES) for label in typed])
        if labels is not None:
            if len(labels) != self._size:
                raise BadInput(
                    f"The number of labels, {len(labels)}, is not the batch size, {self._size}: "
                    "make --labels and --batch-size agree."
                )
            classes = self.public.classes
            if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
                raise BadInput(
                    f"A label is out of range: labels of this model lie in 0 … {classes - 1}."
                )
        parameter = next(iter(self.public.simulator.parameters.values()))
        release = self.held.release
        moved = {n: t.to(parameter.device, parameter.dtype) for n, t in release.tensors.items()}
        return Observation(replace(release, tensors=moved), Hints(self._size, labels))

    @property
    def _size(self) -> int:
        counted = len([part for part in self.labels.split(",") if part.strip()])
        return self.batch_size or self.held.hints.batch_size or counted or 1

    @property
    def _kind(self) -> str:
        return "update" if self.update else "gradient"

    def _simulator(self) -> Simulator:
        if self.mode not in ("train", "eval"):
            raise BadInput(f"--mode {self.mode} is unknown: it is train or eval.")
        if self.reduction not in ("mean", "sum"):
            raise BadInput(f"--reduction {self.reduction} is unknown: it is mean or sum.")
        local = None
        if self.update:
            if self.learning_rate <= 0:
                raise BadInput("An update needs the client's --learning-rate (and --local-steps).")
            local = LocalTraining(
                self.local_steps, self.learning_rate, self.local_batch_size or None, self.momentum
            )
        if self.noise_multiplier and not self.clipping_norm:
            raise BadInput("--noise-multiplier is in units of --clipping-norm: give both.")
        if self.clipping_norm and self.update:
            raise BadInput(
                "--clipping-norm is of one gradient of DP-SGD: leave it out beside --update."
            )
        private = None
        if self.clipping_norm:
            private = ClippedNoise(self.clipping_norm, self.noise_multiplier)
        normalization = None
        if self.mean or self.std:
            normalization = Normalization(
                tuple(_numbers(self.mean, "--mean")), tuple(_numbers(self.std, "--std"))
            )
        return Simulator(
            load_model(self.model, self.weights),
            mode=self.mode,
            reduction=self.reduction,
            normalization=normalization,
            local=local,
            clipped_noise=private,
        )

    def _space(self, simulator: Simulator) -> Space:
        if not self.shape:
            raise BadInput(
                "Say what a record looks like: --shape 1,28,28 for images, --shape 30 for rows, "
                "or --prior with the name of a dataset."
            )
        classes = self.classes or simulator.classes
        if not classes:
            raise BadInput("The model has no linear head to count classes from: give --classes.")
        if classes > MOST_CLASSES:
            raise BadInput(
                f"{classes:,} classes are more than a classifier has: give --classes up to "
                f"{MOST_CLASSES:,}."
            )
        return _space(self.shape, classes)


def noise_prior(space: Space, count: int = NOISE_RECORDS) -> Prior:
    """Uniform noise, for attackers who have collected nothing."""
    generator = stream(0, "noise prior")
    classes = len(space.class_names)
    x = torch.rand((max(count, classes), *space.shape), generator=generator)
    labels = torch.arange(len(x)) % classes
    return Prior(Records(x, labels, space))


def _space(shape: str, classes: int) -> Space:
    names = tuple(str(c) for c in range(classes))
    sizes = _integers(shape, "--shape")
    if min(sizes) > 0 and math.prod(sizes) > MOST_VALUES // NOISE_RECORDS:
        raise BadInput(
            f"--shape {shape[:80]} is a record of more than {MOST_VALUES // NOISE_RECORDS:,} "
            "numbers: give the shape that the model takes."
        )
    if len(sizes) == 3 and min(sizes) > 0:
        return ImageSpace(sizes[0], sizes[1], sizes[2], class_names=names)
    if len(sizes) == 1 and sizes[0] > 0:
        return TableSpace(tuple(Column(f"feature {i + 1}") for i in range(sizes[0])), names)
    raise BadInput(
        f"--shape {shape} is neither channels,height,width nor a row's length: give it as 1,28,28 "
        "or 30."
    )


def _check_fit(simulator: Simulator, space: Space, size: int) -> None:
    """Say plainly, before an attack starts, when model and records do not fit together."""
    like = next(iter(simulator.parameters.values()))
    if size * math.prod(space.shape) > MOST_VALUES:
        raise BadInput(
            f"{size:,} records of shape {_listed(space.shape)} are more than {MOST_VALUES:,} "
            "numbers: give a smaller --batch-size."
        )
    try:
        records = torch.rand((size, *space.shape), generator=stream(0, "fit")).to(like)
        with torch.no_grad():
            outputs = simulator.outputs(records)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise BadInput(
            f"The model does not accept records of shape {_listed(space.shape)} ({said[:200]}): "
            "check --shape or --prior, --mean and --std."
        ) from error
    classes = len(space.class_names)
    if outputs.shape != (size, classes):
        raise BadInput(
            f"The model returns {outputs.shape[-1]} logits for {classes} classes: make them equal, "
            "with --classes or another --prior."
        )


def _numbers(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise BadInput(
            f"{option} {text!r} is no list of numbers: give it as 0.5,0.5,0.5."
        ) from error


def _integers(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise BadInput(
            f"{option} {text!r} is no list of whole numbers: give it as 3,32,32."
        ) from error


def _listed(shape: tuple[int, ...]) -> str:
    return ",".join(str(size) for size in shape)
