"""The inverse problem behind gradient inversion: what was released, and how candidates compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from vestige.attacks.gradient_matching.labels import infer_labels
from vestige.errors import BadInput
from vestige.interfaces import Hints, Observation, Public, Release
from vestige.records import TextSpace
from vestige.simulation.alterations import Reading, join_tensors
from vestige.simulation.kinds import ClientSimulator, client_simulator
from vestige.simulation.losses import one_hot

Distance = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(simulated (restarts, n), observed (n,)) → values (restarts,), zero where both agree, and their
slopes (restarts, n). Slopes are written out by hand: these vectors are as long as the model, and
autograd would walk over them three times as often."""


def squared_distance(simulated: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distance, as a share of the squared norm of what was observed."""
    norm = observed.square().sum()
    norm = torch.where(norm > 0, norm, 1.0)
    difference = simulated - observed
    return difference.square().sum(-1) / norm, difference.mul_(2 / norm)


def cosine_distance(simulated: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """1 − cosine of the angle between all tensors, joined into one vector."""
    return cosine_distance_to(observed)(simulated)


def cosine_distance_to(observed: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Cosine distance to one vector (n,), which is normalised once.

    Written as half the squared distance of the unit vectors, which is the same and keeps its
    digits where 1 − cosine would round to zero. A gradient that vanishes has distance ½.
    """
    tiny = torch.finfo(observed.dtype).tiny
    opposite = -observed / torch.linalg.vector_norm(observed).clamp_min(tiny)

    def distance(simulated: Tensor) -> tuple[Tensor, Tensor]:
        inverse = 1 / torch.linalg.vector_norm(simulated, dim=-1, keepdim=True).clamp_min(tiny)
        difference = torch.addcmul(opposite, simulated, inverse)
        values = torch.linalg.vector_norm(difference, dim=-1, keepdim=True).square_() / 2
        # (I − uuᵀ)(u − o), u the unit vector of what is simulated: u·(u − o) is the value itself.
        slopes = difference.mul_(inverse).addcmul_(simulated, values * inverse.square(), value=-1)
        return values[..., 0], slopes

    return distance


@dataclass(frozen=True)
class Matching:
    """One release to be matched: the tensors in it that the simulator can reproduce.

    ``records`` are those behind it, where their number matters: private noise is shared by them.
    """

    public: Public
    release: Release
    records: int | None = None

    def __post_init__(self) -> None:
        self.simulator.check(self.release)

    @property
    def simulator(self) -> ClientSimulator:
        """The client's computation."""
        return client_simulator(self.public.simulator)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The tensors that are matched, in the model's order; frozen ones are not released."""
        return tuple(n for n in self.simulator.parameters if n in self.release.tensors)

    @cached_property
    def like(self) -> Tensor:
        """A parameter: candidates have its type and device."""
        return self.simulator.parameters[self.names[0]]

    @cached_property
    def _released(self) -> dict[str, Tensor]:
        return {name: self.release.tensors[name].detach().to(self.like) for name in self.names}

    @cached_property
    def reading(self) -> Reading:
        """What the release shows of how the client altered it, as far as the attacker knows."""
        return self.simulator.reading(self._released, records=self.records)

    @cached_property
    def kept(self) -> Tensor | None:
        """Places of the entries that carry a value; None for all of them.

        A defence that sends nothing leaves nothing to compare, so then all entries count.
        """
        if self.reading.kept is None or not bool(self.reading.kept.any()):
            return None
        return torch.nonzero(self.reading.kept).flatten()

    @cached_property
    def observed(self) -> Tensor:
        """The released tensors as one vector, without entries that a mask took away."""
        return self._unmasked(join_tensors(self._released))

    @cached_property
    def noise_share(self) -> float:
        """Variance of the noise in one entry, as a share of the release's squared norm."""
        if not self.reading.noisy:
            return 0.0
        variance = torch.as_tensor(self.reading.deviation).double().square()
        variance = (variance if variance.dim() == 0 else self._unmasked(variance)).mean()
        return float(variance / self.observed.double().square().sum().clamp_min(1e-300))

    def _unmasked(self, vector: Tensor) -> Tensor:
        return vector if self.kept is None else vector.index_select(-1, self.kept)

    def simulated(self, x: Tensor, targets: Tensor, *, functional: bool = True) -> Tensor:
        """What candidates x (batch, *shape) with targets (batch, classes) would have released."""
        tensors = self.simulator(x, targets, functional=functional)
        return self._unmasked(torch.cat([tensors[name].flatten() for name in self.names]))

    def weights(self, inner: float) -> Tensor:
        """One for each entry of the last layer that was released, ``inner`` for all others."""
        last = self.names[-1].rpartition(".")[0]
        weighed = [
            torch.full_like(tensor.flatten(), 1.0 if name.rpartition(".")[0] == last else inner)
            for name, tensor in self._released.items()
        ]
        return self._unmasked(torch.cat(weighed))

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


def check_single_step(public: Public, noun: str) -> None:
    """Refuse updates of several local steps, off which this cannot be read."""
    steps = client_simulator(public.simulator).steps
    if steps > 1:
        other = "InvertingGradients, which unrolls the steps"
        if isinstance(public.space, TextSpace):
            other = "EmbeddingReading, which names tokens without their order"
        raise BadInput(
            f"An update of {steps} local steps is no single gradient: {noun} cannot be read off "
            f"it; try {other}."
        )


def hinted_batch_size(hints: Hints) -> int | None:
    """Records in the batch as told, or counted from told labels; None where neither was told."""
    if hints.batch_size is None and hints.labels is not None:
        return len(hints.labels)
    return hints.batch_size


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
