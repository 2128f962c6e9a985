"""Training of a reconstructor on a stream of shadow heads, which can be stopped and resumed."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vestige import progress
from vestige.attacks.head_reconstructor.drawing_goals import goal_losses, perceptual_losses, softmin
from vestige.attacks.head_reconstructor.head_reader import drawings, network_inputs, to_records
from vestige.attacks.head_reconstructor.head_validation import HeldBackHeads
from vestige.attacks.head_reconstructor.shadow_stream import ShadowBatch, ShadowStream
from vestige.content import add_digest, is_unchanged
from vestige.engines.training_processes import broadcast, own_rows, training_processes
from vestige.errors import BadInput
from vestige.files import read_safetensors, save, tensor_bytes
from vestige.shadows.standardization import Standardization
from vestige.statistics.head_roc import counted_rate

if TYPE_CHECKING:
    from vestige.attacks.head_reconstructor.attack import HeadReconstructor


@dataclass
class Standing:
    """How far training has come; ``unimproved`` counts validations since the best one."""

    step: int = 0
    best_rate: float = -1.0
    best_loss: float = math.inf
    best_step: int = 0
    unimproved: int = 0
    finished: bool = False


class ReaderTraining:
    """Trains a network to draw the records behind heads, and keeps its best state.

    The best validation has the highest true positive rate, and among equal ones the lowest loss.
    Every batch is a function of its step, so a checkpoint holds no generator, and what is resumed
    ends as what was never stopped.

    Started by ``accelerate launch``, every process has its part of each batch on its device. Batch
    norm then sees the part alone, as is usual, so several processes train a little differently
    from one; its running statistics are the mean over the processes.
    """

    def __init__(
        self,
        settings: HeadReconstructor,
        network: nn.Module,
        shadows: ShadowStream,
        standardization: Standardization,
        images: Tensor,
        validation: HeldBackHeads,
        checkpoint: Path | None = None,
    ) -> None:
        self.settings, self.network, self.shadows = settings, network, shadows
        self.standardization, self.images, self.held = standardization, images, validation
        self.checkpoint, self.standing = checkpoint, Standing()
        self._processes, self._home = training_processes(), next(network.parameters()).device
        self.device = self._processes.device(self._home)
        network.to(self.device)
        if settings.batch_size < 2 * self._processes.count:
            raise BadInput(
                f"Batches of {settings.batch_size} heads are too small for "
                f"{self._processes.count} processes: give each of them two or more."
            )
        self.classes = len(shadows.goals.classes)
        self._held_rows = standardization(validation.weights)
        self._optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
        self._average = None if settings.average is None else _copied(network)
        self._best = _copied(network)

    def run(self) -> Standing:
        """Train to the end, from the checkpoint if there is one; the network is then the best."""
        settings, standing = self.settings, self.standing
        if self.checkpoint is not None and self.checkpoint.is_file():
            self._resume(self.checkpoint)
        elif settings.sketch:
            self._validate()  # training need not make a sketch better
        if not standing.finished and standing.step < settings.steps:
            for batch in self.shadows.batches(standing.step):
                self._learn(batch)
                standing.step += 1
                loss = standing.best_loss if math.isfinite(standing.best_loss) else None
                stop = bool(self._agreed(progress.report(standing.step, settings.steps, loss)))
                last = standing.step == settings.steps
                if stop or last or standing.step % settings.validation_interval == 0:
                    self._validate()
                    standing.finished = last or standing.unimproved >= settings.patience
                    # Stopped in between, a run would be validated where an unstopped one is not.
                    due = self._processes.rank == 0 and (standing.finished or not stop)
                    if self.checkpoint is not None and due:
                        self._save(self.checkpoint)
                    if stop or standing.finished:
                        break
        self.network.load_state_dict(self._best)
        self.network.to(self._home).eval()
        return standing

    def _learn(self, batch: ShadowBatch) -> None:
        """One step of Adam."""
        own = own_rows(self._processes, torch.arange(len(batch.weights)))
        rows = self.standardization(batch.weights[own])
        rows = network_inputs(rows, batch.drawing[own], self.classes)
        self.network.train()
        parameters = list(self.network.parameters())
        with torch.enable_grad():
            images = self.network(rows.to(self.device))
            losses = self._loss(images, batch.goals[own], self.images)
            slopes = torch.autograd.grad(losses.sum() / len(batch.weights), parameters)
        for parameter, slope in zip(parameters, self._processes.sum(slopes)):
            parameter.grad = slope
        self._optimizer.step()
        self._share_statistics(len(own) / len(batch.weights))
        if self._average is not None:
            assert self.settings.average is not None
            # Early on the average is over the steps so far, not over the untrained network.
            decay = min(self.settings.average, (1 + self.standing.step) / (10 + self.standing.step))
            for name, value in self.network.state_dict().items():
                if value.is_floating_point():
                    self._average[name].lerp_(value, 1 - decay)

    def _share_statistics(self, share: float) -> None:
        """Make running statistics the mean over the processes, each by its share of the batch."""
        if self._processes.count > 1:
            buffers = [
                statistic
                for layer in self.network.modules()
                if isinstance(layer, _BatchNorm)
                for statistic in (layer.running_mean, layer.running_var)
                if statistic is not None
            ]
            given = [share * buffer for buffer in buffers]
            for buffer, mean in zip(buffers, self._processes.sum(given) if given else ()):
                buffer.copy_(mean)

    def _agreed(self, value: float) -> float:
        return broadcast(self._processes, value, self.device)

    def _loss(self, drawings: Tensor, members: Tensor, images: Tensor) -> Tensor:
        """Softmin loss (n,) of drawings against their goals (n, most) among images in [−1, 1]."""
        goals = images[members.clamp_min(0)].to(self.device)
        losses = goal_losses(drawings, goals)
        if self.settings.perceptual is not None:
            losses = losses + self.settings.perceptual_weight * perceptual_losses(
                self.settings.perceptual, to_records(drawings), to_records(goals)
            )
        return softmin(losses, members.to(self.device) >= 0, self.settings.sharpness)

    def _validate(self) -> None:
        """Measure the network on the held-back heads and keep it if it is the best so far."""
        standing, trained = self.standing, _copied(self.network)
        if self._average is not None:
            self.network.load_state_dict(self._average)
        images = drawings(self.network, self._held_rows, self.classes)
        true, false = self.held.true_and_false(images)
        rate = counted_rate(true, false, self.settings.false_positive_rate)
        rate = self._agreed(float(rate))
        with torch.no_grad():
            flat, members = images.flatten(0, 1), self.held.goals.flatten(0, 1)
            parts = [
                self._loss(some.to(self.device), wanted, self.held.images)
                for some, wanted in zip(flat.split(256), members.split(256))
            ]
        loss = self._agreed(float(torch.cat(parts).mean()))
        standing.unimproved += 1
        if (rate, -loss) > (standing.best_rate, -standing.best_loss):
            standing.best_rate, standing.best_loss = rate, loss
            standing.best_step, standing.unimproved = standing.step, 0
            self._best = _copied(self.network)
        self.network.load_state_dict(trained)

    def _save(self, path: Path) -> None:
        """Write all that the next step depends on, whole or not at all."""
        tensors = _prefixed("network", self.network.state_dict()) | _prefixed("best", self._best)
        tensors |= _prefixed("average", self._average or {})
        for number, parameter in enumerate(self.network.parameters()):
            tensors |= _prefixed(f"adam/{number}", self._optimizer.state[parameter])
        metadata = {"standing": json.dumps(asdict(self.standing))}
        save(path, add_digest(tensor_bytes(tensors, metadata)), folder=True)

    def _resume(self, path: Path) -> None:
        """Take up the state of a checkpoint; its name says that it belongs to this training."""
        tensors, metadata = read_safetensors(path)
        if not is_unchanged(path):
            raise BadInput(f"{path} is damaged: delete it, and the training starts again.")
        try:
            self.standing.__dict__.update(asdict(Standing(**json.loads(metadata["standing"]))))
            self.network.load_state_dict(_under("network", tensors))
            self._best = self._on_device(_under("best", tensors), self._best)
            if self._average is not None:
                self._average = self._on_device(_under("average", tensors), self._average)
            for number, parameter in enumerate(self.network.parameters()):
                state = _under(f"adam/{number}", tensors)
                # Adam counts its steps on the CPU, whatever device its moments are on.
                self._optimizer.state[parameter] = {
                    name: state[name]
                    if name == "step"
                    else torch.empty_like(parameter).copy_(state[name])
                    for name in ("step", "exp_avg", "exp_avg_sq")
                }
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise BadInput(
                f"{path} is damaged: delete it, and the training starts again."
            ) from error

    def _on_device(self, heads: dict[str, Tensor], like: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: heads[name].to(self.device) for name in like}


def _copied(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}/"
    return {n.removeprefix(start): v for n, v in tensors.items() if n.startswith(start)}
