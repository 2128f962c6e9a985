"""Trains a small diffusion prior: resumable to the bit, checkpoints whole or not at all.

Denoising score matching (Ho et al. 2020) with velocity prediction (Salimans and Ho 2022). Two
deviations from the usual recipe: times are continuous, because a privatised image meets the
schedule at any noise level, and most of them are drawn log-uniformly in σ over the range that
denoising uses; uniform times would spend half of the work on noise that hides everything.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from vestige import progress
from vestige.choices import check_fields
from vestige.content import add_digest, is_unchanged
from vestige.engines.training_processes import (
    TrainingProcesses,
    broadcast,
    own_rows,
    training_processes,
)
from vestige.errors import BadInput, Conflict, Interrupted
from vestige.files import (
    explain_errors,
    make_folder,
    read_safetensors,
    save,
    sweep,
    tensor_bytes,
)
from vestige.files.locks import lock_folder
from vestige.priors.diffusion import DiffusionPrior, import_diffusers
from vestige.priors.schedule import NoiseSchedule
from vestige.records import ImageSpace, Records
from vestige.streams import stream

CHECKPOINT = "training.safetensors"


@dataclass(frozen=True)
class PriorTraining:
    """How a prior is trained.

    ``channels`` of the U-Net's levels, each of half the resolution of the one before.
    ``averaging`` is the decay of the exponential moving average that becomes the prior.
    ``quietest`` and ``loudest`` bound the noise deviations (images in [−1, 1]) that are drawn
    log-uniformly; ``whole_schedule`` is the share of uniform times instead. The first
    ``reduced_precision`` of the steps compute in bfloat16, which rounds away the smallest noise:
    the last ones do not.
    """

    steps: int = 3000
    batch_size: int = 32
    learning_rate: float = 2e-3
    averaging: float = 0.998
    channels: tuple[int, ...] = (16, 32, 48)
    groups: int = 8
    prediction: Literal["v_prediction", "epsilon"] = "v_prediction"
    quietest: float = 0.01
    loudest: float = 12.0
    whole_schedule: float = 0.1
    reduced_precision: float = 0.75
    checkpoint_every: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(
            self,
            counts=("groups", "steps", "batch_size", "checkpoint_every"),
            positive=("learning_rate",),
            not_negative=("seed",),
            shares=("averaging", "whole_schedule", "reduced_precision"),
        )
        if self.averaging == 1:
            raise BadInput("An averaging of 1 never learns: choose a value below 1.")
        if not self.channels or min(self.channels) < 1:
            raise BadInput("A prior needs at least one level, of at least one channel.")
        if not 0 < self.quietest < self.loudest:
            raise BadInput("The quietest noise is positive and below the loudest.")
        if any(width % self.groups for width in self.channels):
            raise BadInput(
                f"Every level's channels must be a multiple of the {self.groups} groups of its "
                "normalisation: change channels or groups."
            )


def train_prior(
    images: Records,
    folder: str | Path,
    training: PriorTraining | None = None,
    *,
    device: torch.device | str = "cpu",
) -> DiffusionPrior:
    """Train a prior on images and save it into a folder.

    A checkpoint in the folder is continued; every step draws from its own stream, so that a run
    that was stopped ends with the same weights as one that was not. The finished prior takes the
    checkpoint's place. Started by ``accelerate launch``, every process takes its part of each batch
    on its own device, and the first one writes.
    """
    training, folder = training or PriorTraining(), Path(folder)
    _check(images, training)
    if (folder / "model_index.json").is_file():
        raise Conflict(f"{folder} already holds a prior: name another folder, or remove it.")
    with explain_errors(folder):
        make_folder(folder)
    processes = training_processes()
    if training.batch_size < processes.count:
        raise BadInput(
            f"A batch of {training.batch_size} cannot be shared by {processes.count} processes: "
            "raise batch_size, or start fewer."
        )
    with lock_folder(folder) if processes.rank == 0 else nullcontext():
        if processes.rank == 0:
            with explain_errors(folder):
                sweep(folder)
        return _train(images, folder, training, torch.device(device), processes)


def _train(
    images: Records,
    folder: Path,
    training: PriorTraining,
    device: torch.device,
    processes: TrainingProcesses,
) -> DiffusionPrior:
    run = _Run(images, training, device, processes)
    run.resume(folder / CHECKPOINT)
    stopped = False
    while run.step < training.steps and not stopped:
        loss = run.advance()
        stop = progress.report(run.step, training.steps, loss)
        stopped = bool(broadcast(processes, stop, run.device))
        if (stopped or run.step % training.checkpoint_every == 0) and processes.rank == 0:
            run.keep(folder / CHECKPOINT)
    if run.step < training.steps:
        raise Interrupted(
            f"Training stopped after {run.step} of {training.steps} steps: run it again with the "
            f"same settings to continue from {folder / CHECKPOINT}."
        )
    prior = run.prior()
    if processes.rank == 0:
        prior.save(folder)
        (folder / CHECKPOINT).unlink(missing_ok=True)
    broadcast(processes, 0.0, run.device)  # wait until the files are written
    return prior


def initial_network(training: PriorTraining, shape: tuple[int, ...]) -> nn.Module:
    """The U-Net with its initial weights; torch's global stream is left as it was."""
    levels = len(training.channels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        return import_diffusers().UNet2DModel(
            sample_size=shape[1] if shape[1] == shape[2] else shape[1:],
            in_channels=shape[0],
            out_channels=shape[0],
            block_out_channels=training.channels,
            layers_per_block=1,
            norm_num_groups=training.groups,
            # Attention costs more than it brings in networks this small.
            add_attention=False,
            down_block_types=("DownBlock2D",) * levels,
            up_block_types=("UpBlock2D",) * levels,
        )


class _Run:
    """A training under way: weights, their average, Adam's moments, and the step."""

    def __init__(
        self,
        images: Records,
        training: PriorTraining,
        device: torch.device,
        processes: TrainingProcesses,
    ) -> None:
        self.training, self.processes, self.step = training, processes, 0
        self.device = device = processes.device(device)
        self.shape = tuple(images.x.shape[1:])
        self.images = images.x.float() * 2 - 1
        self.schedule = NoiseSchedule.linear()
        self.network = initial_network(training, self.shape).to(device).train()
        self.average = {n: w.detach().clone() for n, w in self.network.state_dict().items()}
        self.first = {n: torch.zeros_like(w) for n, w in self.network.named_parameters()}
        self.second = {n: torch.zeros_like(w) for n, w in self.network.named_parameters()}
        content = hashlib.sha256("".join(images.fingerprints()).encode()).hexdigest()
        facts = {"training": asdict(training), "images": content}
        self.identity = json.dumps(facts, sort_keys=True)

    def advance(self) -> float:
        """One step of Adam; returns the loss."""
        x, time, target = self._batch()
        reduced = self.step < self.training.reduced_precision * self.training.steps
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=reduced):
            output = self.network(x, time).sample
        loss = nn.functional.mse_loss(output.float(), target)
        loss = loss * (len(x) / self.training.batch_size)
        names, weights = zip(*self.network.named_parameters())
        slopes = torch.autograd.grad(loss, weights)
        *slopes, loss = self.processes.sum([*slopes, loss])
        self.step += 1
        with torch.no_grad():
            self._adam(dict(zip(names, zip(weights, slopes))))
            # The average starts short so that the first weights are forgotten.
            decay = min(self.training.averaging, (1 + self.step) / (10 + self.step))
            for name, weight in self.network.state_dict().items():
                self.average[name].lerp_(weight, 1 - decay)
        return float(loss.detach())

    def _batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Noisy images, their times and what the network should say, from the step's own stream."""
        draw, training = stream(self.training.seed, "prior", self.step), self.training
        count = training.batch_size
        clean = self.images[torch.randint(len(self.images), (count,), generator=draw)]
        # One noise level from each of equal strata: the loss varies less from step to step.
        level = (torch.arange(count) + torch.rand(count, generator=draw)) / count
        span = math.log(training.loudest / training.quietest)
        time = self.schedule.time(training.quietest * (span * level).exp())
        uniform = torch.rand(count, generator=draw, dtype=torch.float64) * (len(self.schedule) - 1)
        anywhere = torch.rand(count, generator=draw) < training.whole_schedule
        time = torch.where(anywhere, uniform, time)
        noise = torch.randn(clean.shape, generator=draw)
        signal, spread = (w.float()[:, None, None, None] for w in self.schedule.weights(time))
        velocity = signal * noise - spread * clean
        target = velocity if training.prediction == "v_prediction" else noise
        noisy = signal * clean + spread * noise
        own = own_rows(self.processes, torch.arange(count))
        noisy, time, target = noisy[own], time[own].float(), target[own]
        return noisy.to(self.device), time.to(self.device), target.to(self.device)

    def _adam(self, moves: dict[str, tuple[Tensor, Tensor]]) -> None:
        """Adam with a gradient norm of one at most, a warm start and a cosine to zero."""
        total = torch.stack([slope.norm() for _, slope in moves.values()]).norm()
        scale = 1 / total.clamp(min=1)
        warm = min(1.0, self.step / 100)
        done = (self.step - 1) / self.training.steps
        rate = self.training.learning_rate * warm * (1 + math.cos(math.pi * done)) / 2
        for name, (weight, slope) in moves.items():
            slope = slope * scale
            self.first[name].lerp_(slope, 0.1)
            self.second[name].lerp_(slope.square(), 0.005)
            mean = self.first[name] / (1 - 0.9**self.step)
            square = self.second[name] / (1 - 0.995**self.step)
            weight.sub_(rate * mean / (square.sqrt() + 1e-8))

    def keep(self, path: Path) -> None:
        """Write a checkpoint."""
        tensors = self._tensors()
        metadata = {"step": str(self.step), "identity": self.identity}
        content = add_digest(tensor_bytes(tensors, metadata))
        save(path, content, kept="the checkpoint before it is unchanged")

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint, if there is one."""
        if not path.is_file():
            return
        tensors, metadata = read_safetensors(path)
        if metadata.get("identity") != self.identity:
            raise Conflict(
                f"{path} is a checkpoint of other settings or other images: name another folder, "
                "or remove it."
            )
        own, step = self._tensors(), metadata.get("step", "")
        fits = {n: t.shape for n, t in own.items()} == {n: t.shape for n, t in tensors.items()}
        if not fits or not re.fullmatch("[0-9]{1,12}", step) or not is_unchanged(path):
            raise BadInput(f"{path} is damaged: remove it, and the training starts again.")
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
        self.step = int(step)

    def _tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds, by part and name."""
        parts = {"weights": self.network.state_dict(), "average": self.average}
        parts |= {"first": self.first, "second": self.second}
        return {f"{part}/{n}": t for part, named in parts.items() for n, t in named.items()}

    def prior(self) -> DiffusionPrior:
        """The prior with the averaged weights."""
        self.network.load_state_dict(self.average)
        network = self.network.eval().requires_grad_(False)
        return DiffusionPrior(network, self.schedule, self.shape, self.training.prediction)


def _check(images: Records, training: PriorTraining) -> None:
    if not isinstance(images.space, ImageSpace):
        raise BadInput("A diffusion prior is trained on images, and these are rows of a table.")
    if not len(images):
        raise BadInput("A diffusion prior needs images to learn from: there are none.")
    halvings = 2 ** (len(training.channels) - 1)
    if any(side % halvings for side in images.space.shape[1:]):
        raise BadInput(
            f"Height and width must be multiples of {halvings} for a network of "
            f"{len(training.channels)} levels: pad the images, or use fewer levels."
        )
