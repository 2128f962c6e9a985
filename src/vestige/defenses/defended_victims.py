"""Victims with a defence: clients that alter what they send, and sums over clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from vestige.alterations import Alteration, ClientMemory, flat, shaped
from vestige.bounds.mechanisms import Mechanism, NonPrivate, has_guarantee
from vestige.errors import BadInput
from vestige.observations import (
    GradientRelease,
    Release,
    StatesMechanism,
    UpdateRelease,
    Victim,
)
from vestige.records import Records
from vestige.simulation import Simulator


@dataclass(frozen=True)
class AlteredVictim:
    """A client that alters its gradient or update before it leaves, in the order given.

    With ``rounds`` it has sent that many releases before, on batches of ``earlier`` at the same
    weights: error feedback then carries what they left out, which nobody else knows.
    """

    victim: Victim
    alterations: tuple[Alteration, ...]
    earlier: Records | None = None
    rounds: int = 0

    @property
    def releases(self) -> type[Release]:
        """The kind of release."""
        return self.victim.releases

    @property
    def simulator(self) -> Simulator:
        """The same computation with what a reader expects of the alterations."""
        return replace(self.victim.simulator, alterations=self.alterations)

    @property
    def mechanism(self) -> Mechanism:
        """The client's own: what is done to a private release afterwards leaves it private."""
        inner = stated(self.victim)
        if has_guarantee(inner):
            return inner
        return NonPrivate(", ".join(getattr(a, "why", "it is altered") for a in self.alterations))

    def release(self, secret: Records, *, generator: torch.Generator) -> Release:
        """Return the altered release of a batch."""
        memory = ClientMemory()
        for _ in range(self.rounds):
            assert self.earlier is not None
            chosen = torch.randperm(len(self.earlier), generator=generator)[: len(secret)]
            self.remembered(self.earlier[chosen], memory, generator=generator)
        return self.remembered(secret, memory, generator=generator)

    def remembered(
        self, secret: Records, memory: ClientMemory, *, generator: torch.Generator
    ) -> Release:
        """Return the altered release of a client that remembers; ``memory`` is written to."""
        plain = self.victim.release(secret, generator=generator)
        local = self.victim.simulator.local
        scale = -1 / local.learning_rate if local and self.releases is UpdateRelease else 1.0
        gradient = flat(plain.tensors) * scale
        sizes = [tensor.numel() for tensor in plain.tensors.values()]
        for alteration in self.alterations:
            gradient = alteration.sent(gradient, sizes, generator=generator, memory=memory)
        return replace(plain, tensors=shaped(gradient / scale, plain.tensors))

    def describe(self) -> dict[str, str]:
        """Settings a reader needs to repeat it."""
        words = ", then ".join(_words(alteration) for alteration in self.alterations)
        rounds = f", after {self.rounds} earlier rounds" if self.rounds else ""
        return {**self.victim.describe(), "Defence": words + rounds}


@dataclass(frozen=True)
class AggregatedClients:
    """Clients whose mean alone is seen, as secure aggregation leaves it.

    Bonawitz et al. 2017. The batch is shared evenly; each client computes and alters its own part.
    """

    victim: Victim
    clients: int

    @property
    def releases(self) -> type[Release]:
        """The kind of release."""
        return self.victim.releases

    @property
    def simulator(self) -> Simulator:
        """The same sum, differentiable."""
        return replace(self.victim.simulator, clients=self.clients)

    @property
    def mechanism(self) -> Mechanism:
        """Each client's own: a sum with others hides no less."""
        return stated(self.victim)

    def release(self, secret: Records, *, generator: torch.Generator) -> Release:
        """Return the mean of what the clients send."""
        if len(secret) % self.clients:
            raise BadInput(
                f"{len(secret)} records cannot be shared evenly by {self.clients} clients: choose "
                f"a batch size that {self.clients} divides."
            )
        size = len(secret) // self.clients
        sent = [
            self.victim.release(secret[start : start + size], generator=generator)
            for start in range(0, len(secret), size)
        ]
        return mean_release(sent)

    def describe(self) -> dict[str, str]:
        """Settings a reader needs to repeat it."""
        return {**self.victim.describe(), "Clients": f"{self.clients}; only their mean is seen"}


def mean_release(sent: list[Release]) -> Release:
    """Mean of releases of one kind; counters among the buffers are those of the first."""

    def averaged(part: str) -> dict[str, torch.Tensor]:
        columns = {name: [getattr(s, part)[name] for s in sent] for name in getattr(sent[0], part)}
        return {
            name: torch.stack(column).mean(0) if column[0].is_floating_point() else column[0]
            for name, column in columns.items()
        }

    return replace(sent[0], tensors=averaged("tensors"), buffers=averaged("buffers"))


def altered(
    victim: Victim, alteration: Alteration, *, earlier: Records | None = None, rounds: int = 0
) -> Victim:
    """The victim that alters what it sends; clients of a sum alter their own part."""
    if isinstance(victim, AggregatedClients):
        inside = altered(victim.victim, alteration, earlier=earlier, rounds=rounds)
        return replace(victim, victim=inside)
    if victim.releases not in (GradientRelease, UpdateRelease):
        raise BadInput(
            "This defence alters gradients and updates, and the victim releases a trained model: "
            "audit what its clients send, or train it with DP-SGD (PrivateGradients)."
        )
    if not isinstance(victim, AlteredVictim):
        return AlteredVictim(victim, (alteration,), earlier, rounds)
    return AlteredVictim(
        victim.victim,
        (*victim.alterations, alteration),
        victim.earlier if earlier is None else earlier,
        max(victim.rounds, rounds),
    )


def innermost(victim: Victim) -> Victim:
    """The victim behind its defences."""
    while isinstance(victim, AlteredVictim | AggregatedClients):
        victim = victim.victim
    return victim


def rebuilt(victim: Victim, change: Callable[[Any], Victim]) -> Victim:
    """The victim with ``change`` made to the one behind its defences."""
    if isinstance(victim, AlteredVictim | AggregatedClients):
        return replace(victim, victim=rebuilt(victim.victim, change))
    return change(victim)


def with_model(victim: Victim, model: nn.Module) -> Victim:
    """The same victim with another model, as after a round of training."""
    return rebuilt(victim, lambda inner: replace(inner, model=model))


def stated(victim: Victim) -> Mechanism:
    """What a victim says about its release."""
    if isinstance(victim, StatesMechanism):
        return victim.mechanism
    return NonPrivate("nobody says what was done to the release")


def _words(alteration: Alteration) -> str:
    name, setting = getattr(alteration, "name", ""), getattr(alteration, "setting", "")
    return f"{name} {setting}".strip() or type(alteration).__name__
