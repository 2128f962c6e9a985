"""The inverse problem behind gradient inversion: what was released, and how candidates compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from vestige.attacks.labels import infer_labels
from vestige.errors import BadInput
from vestige.observations import Observation, Public, Release, UpdateRelease
from vestige.simulation import one_hot

Distance = Callable[[Tensor, Tensor], Tensor]
"""(simulated (n,), observed (n,)) → scalar, zero where both agree."""


def squared_distance(simulated: Tensor, observed: Tensor) -> Tensor:
    """Squared distance, as a share of the squared norm of what was observed."""
    norm = observed.square().sum()
    return (simulated - observed).square().sum() / torch.where(norm > 0, norm, 1.0)


def cosine_distance(simulated: Tensor, observed: Tensor) -> Tensor:
    """1 − cosine of the angle between all tensors, joined into one vector.

    Written as half the squared distance of the unit vectors, which is the same and keeps its
    digits where 1 − cosine would round to zero.
    """
    tiny = torch.finfo(simulated.dtype).tiny
    unit = simulated / simulated.square().sum().sqrt().clamp_min(tiny)
    other = observed / observed.square().sum().sqrt().clamp_min(tiny)
    return (unit - other).square().sum() / 2


@dataclass(frozen=True)
class Matching:
    """One release to be matched: the tensors in it that the simulator can reproduce."""

    public: Public
    release: Release

    def __post_init__(self) -> None:
        known = self.public.simulator.parameters
        extra = [name for name in self.release.tensors if name not in known]
        if extra or not self.release.tensors:
            example = f"such as {extra[0]!r}" if extra else "as it is empty"
            raise BadInput(
                f"The release does not belong to this model, {example}: give the model with the "
                "parameters that were trained when the release was made."
            )
        for name, tensor in self.release.tensors.items():
            if tensor.shape != known[name].shape:
                raise BadInput(
                    f"The release holds {name!r} with shape {tuple(tensor.shape)} where the model "
                    f"has {tuple(known[name].shape)}: give the model the release was made with."
                )
            if not torch.isfinite(tensor).all():
                raise BadInput(
                    f"The release holds NaN or infinite values in {name!r}: give a release made "
                    "before training diverged."
                )
        if isinstance(self.release, UpdateRelease) and self.public.simulator.local is None:
            raise BadInput(
                "The release is an update but the simulator knows no local training: give it a "
                "LocalTraining."
            )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The tensors that are matched, in the model's order; frozen ones are not released."""
        return tuple(n for n in self.public.simulator.parameters if n in self.release.tensors)

    @cached_property
    def like(self) -> Tensor:
        """A parameter: candidates have its type and device."""
        return self.public.simulator.parameters[self.names[0]]

    @cached_property
    def observed(self) -> Tensor:
        """The released tensors as one vector."""
        tensors = [self.release.tensors[name].detach().to(self.like) for name in self.names]
        return torch.cat([tensor.flatten() for tensor in tensors])

    def simulated(self, x: Tensor, targets: Tensor) -> Tensor:
        """What candidates x (batch, *shape) with targets (batch, classes) would have released."""
        simulator = self.public.simulator
        is_update = isinstance(self.release, UpdateRelease)
        tensors = simulator.update(x, targets) if is_update else simulator.gradient(x, targets)
        return torch.cat([tensors[name].flatten() for name in self.names])

    def targets(self, labels: Tensor) -> Tensor:
        """Targets (batch, classes) of labels (batch,)."""
        return one_hot(labels.to(self.like.device), self.public.classes, self.like.dtype)

    def drawn(self, shape: tuple[int, ...], kind: str, generator: torch.Generator) -> Tensor:
        """Starting points, drawn on the CPU: standard normal, or uniform within the bounds."""
        if kind == "normal":
            return torch.randn(shape, generator=generator).to(self.like)
        low, high = self.public.space.bounds or (-1.0, 1.0)
        return (low + (high - low) * torch.rand(shape, generator=generator)).to(self.like)

    def clipped(self, x: Tensor) -> Tensor:
        """Candidates moved to the nearest point within the bounds of their space."""
        bounds = self.public.space.bounds
        return x if bounds is None else x.clamp(*bounds)


def batch_size_of(observation: Observation) -> int:
    """Records in the batch: told, counted from told labels, or assumed to be one."""
    labels = observation.hints.labels
    return len(labels) if labels is not None else observation.hints.batch_size or 1


def labels_of(public: Public, observation: Observation) -> tuple[Tensor, str]:
    """Labels (batch,), and where they come from in words."""
    if observation.hints.labels is not None:
        return observation.hints.labels, "told"
    size = batch_size_of(observation)
    origin = "inferred" if observation.hints.batch_size else "inferred, batch size assumed 1"
    return infer_labels(public, observation.release, size), origin
