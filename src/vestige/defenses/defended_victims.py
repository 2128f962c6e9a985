"""Victims with a defence: clients that alter what they send, and sums over clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vestige.errors import BadInput, brief
from vestige.interfaces import (
    Release,
    RemembersRounds,
    StatesMechanism,
    Victim,
    WrappedVictim,
)
from vestige.mechanisms import Mechanism, NonPrivate, has_guarantee
from vestige.simulation.alterations import Alteration, ClientMemory, join_tensors, split_like
from vestige.simulation.kinds import ClientSimulator

if TYPE_CHECKING:
    from vestige.records import Records


@dataclass(frozen=True)
class AlteredVictim:
    """A client that alters its gradient or update before it leaves, in the order given.

    With ``rounds`` it has sent that many releases before, on batches of ``earlier`` at the same
    weights: error feedback then adds what they left out, which the attacker does not know.
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
    def simulator(self) -> ClientSimulator:
        """The same computation with what a reader expects of the alterations."""
        return replace(client_simulator(self.victim), alterations=self.alterations)

    @property
    def mechanism(self) -> Mechanism:
        """The client's own: what is done to a private release afterwards leaves it private."""
        inner = mechanism_of(self.victim)
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

    def new_memory(self) -> ClientMemory:
        """Return the memory of a client that has sent nothing yet."""
        return ClientMemory()

    def remembered(
        self, secret: Records, memory: ClientMemory, *, generator: torch.Generator
    ) -> Release:
        """Return the altered release of a client that remembers; ``memory`` is written to."""
        plain = self.victim.release(secret, generator=generator)
        scale = 1 / client_simulator(self.victim).step_scale
        gradient = join_tensors(plain.tensors) * scale
        sizes = [tensor.numel() for tensor in plain.tensors.values()]
        for alteration in self.alterations:
            gradient = alteration.sent(gradient, sizes, generator=generator, memory=memory)
        return replace(plain, tensors=split_like(gradient / scale, plain.tensors))

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
    def simulator(self) -> ClientSimulator:
        """The same sum, differentiable."""
        return replace(client_simulator(self.victim), clients=self.clients)

    @property
    def mechanism(self) -> Mechanism:
        """Each client's own: a sum with others hides no less."""
        return mechanism_of(self.victim)

    def release(self, secret: Records, *, generator: torch.Generator) -> Release:
        """Return the mean of what the clients send."""
        parts = self._parts(secret)
        return mean_release([self.victim.release(part, generator=generator) for part in parts])

    def new_memory(self) -> list[Any]:
        """Return the memories of the clients; None of those that remember nothing."""
        return [new_memory(self.victim) for _ in range(self.clients)]

    def remembered(
        self, secret: Records, memory: list[Any], *, generator: torch.Generator
    ) -> Release:
        """Return the mean of what clients send that remember; ``memory`` is written to."""
        return mean_release(
            [
                release_in_round(self.victim, part, own, generator=generator)
                for part, own in zip(self._parts(secret), memory)
            ]
        )

    def _parts(self, secret: Records) -> list[Records]:
        """The records of each client."""
        if len(secret) % self.clients:
            raise BadInput(
                f"{len(secret)} records cannot be shared evenly by {self.clients} clients: choose "
                f"a batch size that {self.clients} divides."
            )
        size = len(secret) // self.clients
        return [secret[start : start + size] for start in range(0, len(secret), size)]

    def describe(self) -> dict[str, str]:
        """Settings a reader needs to repeat it."""
        return {**self.victim.describe(), "Clients": f"{self.clients}; only their mean is seen"}


def new_memory(victim: Victim) -> Any:
    """What a victim remembers before its first round; None if it remembers nothing."""
    return victim.new_memory() if isinstance(victim, RemembersRounds) else None


def release_in_round(
    victim: Victim, secret: Records, memory: Any, *, generator: torch.Generator
) -> Release:
    """What a victim releases that has the memory of earlier rounds, if it remembers them."""
    if isinstance(victim, RemembersRounds):
        return victim.remembered(secret, memory, generator=generator)
    return victim.release(secret, generator=generator)


def mean_release(sent: list[Release]) -> Release:
    """Mean of releases of one kind; counters among the buffers are those of the first."""

    def averaged(part: str) -> dict[str, torch.Tensor]:
        columns = {name: [getattr(s, part)[name] for s in sent] for name in getattr(sent[0], part)}
        return {
            name: torch.stack(column).mean(0) if column[0].is_floating_point() else column[0]
            for name, column in columns.items()
        }

    return replace(sent[0], tensors=averaged("tensors"), buffers=averaged("buffers"))


def alter_victim(
    victim: Victim, alteration: Alteration, *, earlier: Records | None = None, rounds: int = 0
) -> Victim:
    """The victim that alters what it sends; clients of a sum alter their own part."""
    if isinstance(victim, AggregatedClients):
        inside = alter_victim(victim.victim, alteration, earlier=earlier, rounds=rounds)
        return replace(victim, victim=inside)
    client_simulator(victim)  # refuses what does not fit
    if not isinstance(victim, AlteredVictim):
        return AlteredVictim(victim, (alteration,), earlier, rounds)
    return AlteredVictim(
        victim.victim,
        (*victim.alterations, alteration),
        victim.earlier if earlier is None else earlier,
        max(victim.rounds, rounds),
    )


def client_simulator(victim: Victim) -> ClientSimulator:
    """The simulator of a victim that sends gradients or updates; others are refused."""
    simulator = getattr(victim, "simulator", None)
    if simulator is None:
        raise BadInput(
            f"A defence takes a victim, such as SharedGradient(model), not {brief(victim)}."
        )
    if not isinstance(simulator, ClientSimulator):
        raise BadInput(
            "This defence alters gradients and updates, and the victim releases a trained model: "
            "audit what its clients send, or train it with DP-SGD (PrivateGradients)."
        )
    return simulator


def innermost(victim: Victim) -> Victim:
    """The victim behind its defences."""
    while isinstance(victim, WrappedVictim):
        victim = victim.victim
    return victim


def rebuild(victim: Victim, change: Callable[[Any], Victim]) -> Victim:
    """The victim with ``change`` made to the one behind its defences."""
    if isinstance(victim, WrappedVictim):
        inside: Any = victim
        return replace(inside, victim=rebuild(victim.victim, change))
    return change(victim)


def with_model(victim: Victim, model: nn.Module) -> Victim:
    """The same victim with another model, as after a round of training."""
    return rebuild(victim, lambda inner: replace(inner, model=model))


def mechanism_of(victim: Victim) -> Mechanism:
    """What a victim says about its release."""
    if isinstance(victim, StatesMechanism):
        return victim.mechanism
    return NonPrivate("the victim states no mechanism")


def _words(alteration: Alteration) -> str:
    name, setting = getattr(alteration, "name", ""), getattr(alteration, "setting", "")
    return f"{name} {setting}".strip() or type(alteration).__name__
