"""What is released, what an attacker is told, what it sees, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.simulation.releases import (
    GradientRelease,
    GradientSequenceRelease,
    ModelRelease,
    Release,
    UpdateRelease,
)

if TYPE_CHECKING:
    from vestige.bounds.errors.release_defense import ReleaseDefense
    from vestige.mechanisms import Mechanism
    from vestige.records import Prior, Records, Space
    from vestige.simulation.simulator import Simulator


__all__ = [
    "Attack",
    "Briefing",
    "Defense",
    "GradientRelease",
    "GradientSequenceRelease",
    "Hints",
    "ModelRelease",
    "Observation",
    "Public",
    "Reconstruction",
    "Reconstructor",
    "Release",
    "RemembersRounds",
    "Run",
    "StatesErrorBound",
    "StatesMechanism",
    "ThreatModel",
    "UpdateRelease",
    "Victim",
    "WrappedVictim",
    "is_guess",
    "reads_order",
    "reads_texts",
]


@dataclass(frozen=True)
class Hints:
    """What the attacker was told about one release, beside the release.

    ``labels`` (batch,) says which labels the batch holds. Decoys satisfy every hint.
    """

    batch_size: int | None = None
    labels: Tensor | None = None

    def __post_init__(self) -> None:
        check_fields(self, counts=("batch_size",))


@dataclass(frozen=True)
class Observation:
    """All that reaches the attacker about one release."""

    release: Release
    hints: Hints = field(default_factory=Hints)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Public:
    """All that the attacker knows before any release.

    ``normalization_known`` is False where the client may normalise its inputs in a way that the
    simulator does not show.
    """

    simulator: Simulator
    prior: Prior
    reads: type[Release] = GradientRelease
    normalization_known: bool = True

    def __post_init__(self) -> None:
        check_fields(self)

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
    without the secret; objective is the final gradient distance. ``remark`` tells a reader what
    kept the attack from more, in whole sentences; ``ties`` counts the records that fit as well as
    the candidate, itself included. ``samples`` (s, k, *shape) are candidates of other searches that
    explain the release about as well: where they differ, the release does not determine the
    record. ``rehearsed`` (k, 3) are, where confidence is a rate, the hits among the rehearsed
    candidates behind it, their number, and the decoys of a hit. ``info`` holds facts for a reader,
    never for a program. An attack does not judge itself.
    """

    candidates: Tensor
    labels: Tensor | None = None
    confidence: Tensor | None = None
    objective: float | None = None
    diverged: bool = False
    info: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    remark: str = ""
    ties: int = 1
    samples: Tensor | None = None
    rehearsed: Tensor | None = None

    def __post_init__(self) -> None:
        check_fields(self, counts=("ties",), any_number=("objective",))

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
        if self.rehearsed is not None and self.rehearsed.shape != (len(self.candidates), 3):
            raise BadInput("The attack returned rehearsed hits that do not match its candidates.")
        if self.samples is not None and self.samples.shape[1:] != self.candidates.shape:
            raise BadInput("The attack returned samples that do not match its candidates.")
        return self


Reconstructor = Callable[[Observation, torch.Generator], Reconstruction]


@runtime_checkable
class StatesLikelihood(Protocol):
    """A reconstructor that also says how likely a release is for each of several records.

    An audit then ranks the secret among its decoys by this likelihood too, beside the distance to
    the reconstruction, which decides the verdict.
    """

    def log_likelihoods(self, observation: Observation, records: Records) -> Tensor | None:
        """The log-likelihood of the release for each record (n,), up to a constant, or None.

        Each record in turn is the one behind the release that the attacker does not know.
        """
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


def is_guess(attack: Attack) -> bool:
    """Whether an attack never looks at the release; such an attack has ``is_guess = True``."""
    return bool(getattr(attack, "is_guess", False))


def reads_texts(attack: Attack) -> bool:
    """Whether an attack reads records that are texts; such an attack has ``reads_texts = True``."""
    return bool(getattr(attack, "reads_texts", False))


def reads_order(attack: Attack) -> bool:
    """Whether tokens come back in their order; an attack without it has ``reads_order = False``."""
    return bool(getattr(attack, "reads_order", True))


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


@runtime_checkable
class WrappedVictim(Protocol):
    """A victim around another one, as a defence makes it: a dataclass with a field ``victim``."""

    @property
    def victim(self) -> Victim:
        """The victim inside."""
        ...


@runtime_checkable
class RemembersRounds(Protocol):
    """A victim that carries something from round to round, as error feedback does."""

    def new_memory(self) -> Any:
        """Return what it remembers before its first round."""
        ...

    def remembered(self, secret: Records, memory: Any, *, generator: torch.Generator) -> Release:
        """Run one round on a batch; ``memory`` is written to."""
        ...


@runtime_checkable
class Defense(Protocol):
    """Turns a victim into a defended one. Frozen data, so that a comparison can name it."""

    @property
    def name(self) -> str:
        """The name readers see; defences of one name differ in strength."""
        ...

    @property
    def strength(self) -> float:
        """The number that says how strong it is, in its own unit."""
        ...

    @property
    def ordering(self) -> float:
        """Sorts defences of one name: the one with the larger number protects more."""
        ...

    @property
    def setting(self) -> str:
        """Its strength in words."""
        ...

    @property
    def mechanism(self) -> Mechanism:
        """What it guarantees; a heuristic guarantees nothing and says why."""
        ...

    def __call__(self, victim: Victim) -> Victim:
        """Return the victim with this defence, or say why it does not fit."""
        ...

    def records(self, batch_size: int) -> int:
        """Records behind one release when every client holds ``batch_size`` of them."""
        ...


@runtime_checkable
class StatesErrorBound(Protocol):
    """An alteration of a release that says which bounds on the error hold behind it.

    Behind an alteration that does not say so, no bound is claimed.
    """

    @property
    def error_bound(self) -> ReleaseDefense | None:
        """What it does beside ``expected`` and noise, or None where no theorem is known."""
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
