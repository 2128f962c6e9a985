"""Attacks that never look at the release, and records for them to miss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from null_sections.drafts import FALSE_POSITIVE_RATE
from vestige import Audit, ImageSpace, Prior, Records, networks
from vestige.interfaces import (
    GradientRelease,
    Observation,
    Public,
    Reconstruction,
    Reconstructor,
)
from vestige.threats import HonestServer
from vestige.victims import SharedGradient

SPACE = ImageSpace(1, 4, 4, ("a", "b", "c"), noun="patch")


def patches(count: int, seed: int) -> Records:
    """Patches of three classes, in turn: a mean for each class and noise around it."""
    means = torch.rand((3, *SPACE.shape), generator=torch.Generator().manual_seed(99))
    noise = torch.randn((count, *SPACE.shape), generator=torch.Generator().manual_seed(seed))
    y = torch.arange(count) % 3
    return Records((0.2 + 0.6 * means[y] + 0.12 * noise).clamp(0, 1), y, SPACE)


def small_victim() -> SharedGradient:
    """The gradient of a small network, which no attack here looks at."""
    generator = torch.Generator().manual_seed(5)
    return SharedGradient(networks.mlp(SPACE, hidden=(4,), generator=generator))


def blind_audit(
    attacks: Sequence[Blind], secrets: Records, prior: Records, trials: int = 20, **changes: Any
) -> Audit:
    """An audit whose attacks are told the labels and read nothing."""
    return Audit(
        small_victim(),
        secrets,
        Prior(prior),
        list(attacks),
        threat=HonestServer(labels=True),
        false_positive_rate=FALSE_POSITIVE_RATE,
        trials=trials,
        **changes,
    )


@dataclass(frozen=True)
class Blind:
    """Returns grey pictures, or ``candidates`` random records of the prior with the told label."""

    kind: Literal["grey", "draws"]
    candidates: int = 1

    summary = "never looks at the release"
    needs = "the labels"
    cites = "nobody"
    reads = (GradientRelease,)

    @property
    def name(self) -> str:
        """The name readers see."""
        return f"Blind: {self.kind}"

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Return the attack; there is nothing to learn."""
        prior = public.prior

        def reconstruct(observation: Observation, generator: torch.Generator) -> Reconstruction:
            labels = observation.hints.labels
            assert labels is not None
            if self.kind == "grey":
                return Reconstruction(torch.full((len(labels), *public.space.shape), 0.5))
            members = prior.members(int(labels[0]))
            chosen = members[torch.randint(len(members), (self.candidates,), generator=generator)]
            return Reconstruction(prior.records.x[chosen])

        return reconstruct
