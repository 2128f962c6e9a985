"""What is released, what an attacker is told, what it sees, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from vestige.errors import BadInput
from vestige.records import Prior, Records, Space
from vestige.simulation import Simulator

if TYPE_CHECKING:
    from vestige.bounds.mechanisms import Mechanism


@dataclass(frozen=True)
class GradientRelease:
    """One gradient, by parameter name; ``buffers`` as the client's state holds them afterwards."""

    tensors: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class UpdateRelease:
    """New minus old parameters after local training; ``buffers`` as they are afterwards."""

    tensors: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelRelease:
    """A trained model: its trained parameters by name, and its ``buffers``."""

    tensors: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class GradientSequenceRelease:
    """The noisy sums of clipped gradients that T steps of DP-SGD made.

    ``tensors`` hold them by parameter name, (T, *shape). ``known_sampled`` (T, known) says which of
    the known records each step had sampled: with it and the initial weights an informed adversary
    follows the training and subtracts what the known records contributed.
    """

    tensors: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    known_sampled: Tensor | None = None


Release = GradientRelease | UpdateRelease | ModelRelease | GradientSequenceRelease


@dataclass(frozen=True)
class Hints:
    """What the attacker was told about one release, beside the release.

    ``labels`` (batch,) says which labels the batch holds. Decoys satisfy every hint.
    """

    batch_size: int | None = None
    labels: Tensor | None = None


@dataclass(frozen=True)
class Observation:
    """All that reaches the attacker about one release."""

    release: Release
    hints: Hints = field(default_factory=Hints)


@dataclass(frozen=True)
class Public:
    """All that the attacker knows before any release."""

    simulator: Simulator
    prior: Prior
    reads: type[Release] = GradientRelease

    @property
    def space(self) -> Space:
        """The space that candidates live in."""
        return self.prior.space

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.space.class_names)


@dataclass(frozen=True)
class Reconstruction:
    """What an attack believes the secret to be.

    candidates (k, *shape) with labels (k,) or None; confidence (k,), higher is surer and made
    without the secret; objective is the final gradient distance. ``info`` holds facts for a
    reader, never for a program. An attack does not judge itself.
    """

    candidates: Tensor
    labels: Tensor | None = None
    confidence: Tensor | None = None
    objective: float | None = None
    diverged: bool = False
    info: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    def checked(self, space: Space) -> Reconstruction:
        """Return self, or say what is wrong with its form."""
        if tuple(self.candidates.shape[1:]) != space.shape:
            raise BadInput(
                f"The attack returned candidates of shape {tuple(self.candidates.shape[1:])} "
                f"where {space.shape} is expected."
            )
        for name in ("labels", "confidence"):
            value = getattr(self, name)
            if value is not None and value.shape != self.candidates.shape[:1]:
                raise BadInput(f"The attack returned {name} that do not match its candidates.")
        return self


Reconstructor = Callable[[Observation, torch.Generator], Reconstruction]


@runtime_checkable
class ReadsTogether(Protocol):
    """A reconstructor that reads many releases at once, up to rounding as it would one by one."""

    def __call__(self, observation: Observation, generator: torch.Generator, /) -> Reconstruction:
        """Read one release."""
        ...

    def together(
        self, observations: Sequence[Observation], generator: torch.Generator
    ) -> list[Reconstruction]:
        """One reconstruction for each observation."""
        ...


@runtime_checkable
class Attack(Protocol):
    """One published method. See CONTRIBUTING for how to add one."""

    @property
    def name(self) -> str:
        """The name readers see."""
        ...

    @property
    def summary(self) -> str:
        """How it works, in a few words."""
        ...

    @property
    def needs(self) -> str:
        """What it must be told, in a few words."""
        ...

    @property
    def cites(self) -> str:
        """The paper it implements."""
        ...

    @property
    def reads(self) -> tuple[type[Release], ...]:
        """The releases it can read."""
        ...

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Train whatever it needs; it sees no secret."""
        ...


class Victim(Protocol):
    """A process under audit."""

    @property
    def releases(self) -> type[Release]:
        """The kind of release it makes."""
        ...

    @property
    def simulator(self) -> Simulator:
        """Its computation, as a fully informed reader of its code would replay it."""
        ...

    def release(self, secret: Records, *, generator: torch.Generator) -> Release:
        """Run once on a secret batch and return what leaves the building."""
        ...

    def describe(self) -> dict[str, str]:
        """Settings a reader needs to repeat it."""
        ...


@runtime_checkable
class StatesMechanism(Protocol):
    """A victim that says what guarantee its release carries; others are taken to have none."""

    @property
    def mechanism(self) -> Mechanism:
        """What ``release`` does to the batch it is given.

        Sampling counts only if ``release`` itself draws the sample: an audited record is always in
        the batch.
        """
        ...


@dataclass(frozen=True)
class Run:
    """One run of a victim: the secret batch and what was released."""

    secret: Records
    release: Release


@dataclass(frozen=True)
class Briefing:
    """The threat model in sentences, for the page."""

    attacker: str
    who: str
    sees: str
    told: str
    not_told: str


class ThreatModel(Protocol):
    """The only door to the attacker."""

    def public(self, victim: Victim, prior: Prior) -> Public:
        """Return what is known before any release."""
        ...

    def observe(self, run: Run) -> Observation:
        """Return the release and the hints, nothing else."""
        ...

    def briefing(self, victim: Victim, batch_size: int) -> Briefing:
        """Say in words who sees what."""
        ...
