"""A captured release as a user describes it on the command line, turned into an observation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from vestige.archive import load_captured
from vestige.cli.prior_records import is_folder, prior_records, with_model_classes
from vestige.cli.text_options import text_prior, text_space
from vestige.cli.user_code import load_model
from vestige.errors import BadInput
from vestige.files.memory import refuse_memory
from vestige.interfaces import (
    GradientSequenceRelease,
    Hints,
    ModelRelease,
    Observation,
    Public,
    UpdateRelease,
)
from vestige.networks.token_model import TokenModel, own_loss
from vestige.records import Column, ImageSpace, Prior, Records, Space, TableSpace, TextSpace
from vestige.reports.parts import Check
from vestige.simulation.dp_sgd import ClippedNoise
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.local_training import LocalTraining, Normalization
from vestige.simulation.losses import cross_entropy
from vestige.simulation.refusals import is_single_record, refusal
from vestige.simulation.simulator import Simulator
from vestige.simulation.update import UpdateSimulator
from vestige.streams import stream

MOST_VALUES = 2**28
"""Most numbers of a batch of records: a gigabyte, which attacks hold many times over."""

NOISE_RECORDS = 64
"""Records of noise that give attacks the form of a record where no prior was collected."""

MOST_CLASSES = 100_000
"""Most classes: every one has a name, and no classifier has more."""


@dataclass(frozen=True)
class Capture:
    """A captured release and what is known about where it came from, as typed by a user.

    A gradient means something at the weights it was computed at, so exactly one of ``weights``,
    ``weights_in_model`` (the factory makes the model with them) and ``untrained`` (they are the
    initial ones that the factory draws, after ``torch.manual_seed(seed)``) is given.
    """

    gradient: Path
    model: str
    weights: Path | None = None
    weights_in_model: bool = False
    untrained: bool = False
    seed: int = 0
    shape: str = ""
    classes: int = 0
    class_names: str = ""
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
    tokenizer: Path | None = None
    length: int = 0

    @cached_property
    def held(self) -> Observation:
        """What the file holds; hints only if it says them itself."""
        held = load_captured(self.gradient, update=self.update)
        if isinstance(held.release, ModelRelease):
            raise BadInput(
                f"{self.gradient} holds a trained model, no gradient: audit it from Python, with "
                "vestige.studies.missing_record or an Audit against an InformedAdversary."
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

    @property
    def settings(self) -> dict[str, str]:
        """What a page says of the model beside what the attack knows."""
        return {"Model": self.model, "Weights": self._weights_sentence}

    @property
    def remarks(self) -> tuple[Check, ...]:
        """What a reader has to know before any candidate."""
        if not self.untrained:
            return ()
        return (
            Check.remark(
                f"The model is untrained: its weights are {self._weights_sentence}. A "
                "gradient that was computed at any other weights cannot be matched.",
                "If the model was trained, or its initial weights were drawn otherwise, "
                "give the weights before the step with --weights.",
            ),
        )

    @property
    def _weights_sentence(self) -> str:
        if self.weights is not None:
            return f"from {self.weights.name}"
        if self.untrained:
            return f"the initial ones that {self.model} makes, with torch's seed {self.seed}"
        return f"as {self.model} makes them"

    def _check_weights(self) -> None:
        """Refuse a model whose weights were not stated: attacks on it look like any other."""
        given = [self.weights is not None, self.weights_in_model, self.untrained]
        if sum(given) == 0:
            raise BadInput(
                "Say which weights the gradient was computed at: --weights FILE.safetensors, "
                "--weights-in-model if --model makes the model with them, or --untrained if they "
                "are its initial ones."
            )
        if sum(given) > 1:
            raise BadInput(
                "--weights, --weights-in-model and --untrained exclude each other: give the one "
                "that says where the weights come from."
            )

    @cached_property
    def public(self) -> Public:
        """What the attacker knows."""
        self._check_weights()
        release = type(self.held.release)
        simulator = self._simulator()
        if self.prior and self._texts:
            space = self._space(simulator)
            assert isinstance(space, TextSpace)
            self._check_fit(simulator, space)
            prior = Prior(text_prior(self.prior, space, simulator.model))
        elif self.prior:
            prior = Prior(self._prior_records(simulator))
        else:
            space = self._space(simulator)
            self._check_fit(simulator, space)
            prior = noise_prior(space)
        return Public(simulator, prior, reads=release)

    @cached_property
    def observation(self) -> Observation:
        """What the attacker sees, on the device and in the precision of the model."""
        labels = self.held.hints.labels
        if self.labels:
            typed = _integers(self.labels, "--labels", "0,2,2, one label for each record")
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
    def _told_size(self) -> int | None:
        counted = len([part for part in self.labels.split(",") if part.strip()])
        return self.batch_size or self.held.hints.batch_size or counted or None

    @property
    def _size(self) -> int:
        return self._told_size or 1

    def _check_fit(self, simulator: Simulator, space: Space) -> int:
        try:
            return _check_fit(simulator, space, self._size)
        except BadInput as problem:
            if self._told_size is None and is_single_record(problem.__cause__):
                raise BadInput(
                    "Batch norm in train mode needs more than one record, and one is assumed "
                    "where the batch size is not told: give --batch-size, or --mode eval if the "
                    "client ran in that mode."
                ) from problem
            raise

    def _prior_records(self, simulator: Simulator) -> Records:
        """The records that --prior names, with the classes of the model."""
        sides = _space(self.shape, ("0",)).shape[1:] if self.shape else ()
        records = prior_records(self.prior, (sides[0], sides[1]) if sides else None)
        shape = records.space.shape
        if self.shape and _space(self.shape, ("0",)).shape != shape:
            raise BadInput(
                f"--shape {self.shape} is not the shape of {self.prior}, {_listed(shape)}: leave "
                "one of the two out."
            )
        outputs = self._check_fit(simulator, records.space)
        classes = self.classes or outputs
        if classes > outputs:
            raise BadInput(_too_few_outputs(outputs, classes))
        folder = self.prior if is_folder(self.prior) else ""
        return with_model_classes(records, classes, self._named_classes(classes), folder=folder)

    def _named_classes(self, classes: int) -> tuple[str, ...]:
        """The names of the model's outputs, if they were given."""
        named = tuple(name.strip() for name in self.class_names.split(",") if name.strip())
        if named and (len(named) != classes or len(set(named)) < classes):
            raise BadInput(
                f"--class-names are {len(set(named))} different names for {classes} classes: name "
                "every output of the model once, in their order."
            )
        return named

    @property
    def _kind(self) -> str:
        return "update" if self.update else "gradient"

    def _simulator(self) -> Simulator:
        if self.mode not in ("train", "eval"):
            raise BadInput(f"--mode {self.mode} is unknown: it is train or eval.")
        if self.reduction not in ("mean", "sum"):
            raise BadInput(f"--reduction {self.reduction} is unknown: it is mean or sum.")
        if self.update and self.learning_rate <= 0:
            raise BadInput("An update needs the client's --learning-rate (and --local-steps).")
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
        model = load_model(self.model, self.weights, seed=self.seed)
        modelling = isinstance(model, TokenModel) and model.task == "language modelling"
        loss = own_loss if modelling else cross_entropy
        shared = (model, loss, self.reduction, self.mode, normalization)
        if not self.update:
            return GradientSimulator(*shared, clipped_noise=private)
        local = LocalTraining(
            self.local_steps, self.learning_rate, self.local_batch_size or None, self.momentum
        )
        return UpdateSimulator(*shared, local=local)

    @property
    def _texts(self) -> bool:
        return self.tokenizer is not None or self.length > 0

    def _space(self, simulator: Simulator) -> Space:
        if self._texts:
            named = tuple(str(number) for number in range(self.classes or simulator.classes or 1))
            names = self._named_classes(len(named)) or named
            return text_space(simulator.model, self.tokenizer, self.length, names)
        if not self.shape:
            raise BadInput(
                "Say what a record looks like: --shape 1,28,28 for images, --shape 30 for rows, "
                "--length 64 for texts, or --prior with the name of a dataset, a folder of "
                "pictures or an npz file."
            )
        classes = self.classes or simulator.classes
        if not classes:
            raise BadInput("The model has no linear head to count classes from: give --classes.")
        if classes > MOST_CLASSES:
            raise BadInput(
                f"{classes:,} classes are more than a classifier has: give --classes up to "
                f"{MOST_CLASSES:,}."
            )
        numbers = tuple(str(number) for number in range(classes))
        return _space(self.shape, self._named_classes(classes) or numbers)


def noise_prior(space: Space, count: int = NOISE_RECORDS) -> Prior:
    """Uniform noise in place of records, for attackers who have collected nothing."""
    generator = stream(0, "noise prior")
    classes = len(space.class_names)
    refuse_memory(
        4 * max(count, classes) * math.prod(space.shape),
        4 * MOST_VALUES,
        f"A prior of noise with a record for each of {classes:,} classes",
        "give --prior with the name of a dataset",
    )
    x = torch.rand((max(count, classes), *space.shape), generator=generator)
    if isinstance(space, TextSpace):
        x = (x * space.vocabulary).floor()
    labels = torch.arange(len(x)) % classes
    return Prior(Records(x, labels, space), collected=False)


def _space(shape: str, class_names: tuple[str, ...]) -> Space:
    sizes = _integers(shape, "--shape", "3,32,32")
    if min(sizes) > 0 and math.prod(sizes) > MOST_VALUES // NOISE_RECORDS:
        raise BadInput(
            f"--shape {shape[:80]} is a record of more than {MOST_VALUES // NOISE_RECORDS:,} "
            "numbers: give the shape that the model takes."
        )
    if len(sizes) == 3 and min(sizes) > 0:
        return ImageSpace(sizes[0], sizes[1], sizes[2], class_names=class_names)
    if len(sizes) == 1 and sizes[0] > 0:
        return TableSpace(tuple(Column(f"feature {i + 1}") for i in range(sizes[0])), class_names)
    raise BadInput(
        f"--shape {shape} is neither channels,height,width nor a row's length: give it as 1,28,28 "
        "or 30."
    )


def _check_fit(simulator: Simulator, space: Space, size: int) -> int:
    """The model's outputs; say plainly when model and records do not fit together."""
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
        meaning = refusal(error)
        if meaning is not None:
            raise BadInput(meaning) from error
        said = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise BadInput(
            f"The model does not accept records of shape {_listed(space.shape)} ({said[:200]}): "
            "check --shape or --prior, --mean and --std."
        ) from error
    classes = len(space.class_names)
    if outputs.dim() != 2 or len(outputs) != size or outputs.shape[1] < classes:
        raise BadInput(_too_few_outputs(outputs.shape[-1], classes))
    return outputs.shape[1]


def _too_few_outputs(outputs: int, classes: int) -> str:
    return (
        f"The model returns {outputs} logits for {classes} classes: give --classes {outputs} or "
        "fewer, or another --prior."
    )


def _numbers(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise BadInput(
            f"{option} {text!r} is no list of numbers: give it as 0.5,0.5,0.5."
        ) from error


def _integers(text: str, option: str, example: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise BadInput(
            f"{option} {text!r} is no list of whole numbers: give it as {example}."
        ) from error


def _listed(shape: tuple[int, ...]) -> str:
    return ",".join(str(size) for size in shape)
