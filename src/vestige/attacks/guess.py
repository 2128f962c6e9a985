"""The guesser: what anybody could say who never saw the release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from vestige.errors import BadInput
from vestige.observations import (
    GradientRelease,
    GradientSequenceRelease,
    ModelRelease,
    Observation,
    Public,
    Reconstruction,
    Reconstructor,
    UpdateRelease,
)


@dataclass(frozen=True)
class Guess:
    """Guess from the prior and the hints alone, blind to the release.

    No attack has leaked anything that this one finds as well (Balle, Cherubin and Hayes 2022,
    "Reconstructing Training Data with Informed Adversaries", Section 4, call it the oblivious
    attack). ``kind`` is a random record of the prior ("draw") or the average one ("mean"), of the
    told label where there is one.
    """

    kind: Literal["draw", "mean"] = "draw"

    summary = "looks at the prior and the hints, never at the release"
    needs = "records of the same kind"
    cites = (
        "Balle, Cherubin, Hayes 2022, Reconstructing Training Data with Informed Adversaries, §4"
    )
    reads = (GradientRelease, UpdateRelease, ModelRelease, GradientSequenceRelease)

    def __post_init__(self) -> None:
        if self.kind not in ("draw", "mean"):
            raise BadInput(f"A guess is 'draw' or 'mean', not {self.kind!r}.")

    @property
    def name(self) -> str:
        """The name readers see."""
        return f"Guess: prior {self.kind}"

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Return the guesser; it needs no training."""
        prior = public.prior

        def guess(observation: Observation, generator: torch.Generator) -> Reconstruction:
            told = observation.hints.labels
            size = len(told) if told is not None else observation.hints.batch_size or 1
            wanted: list[int | None] = [None] * size if told is None else told.tolist()
            if self.kind == "mean":
                means = {label: prior.mean(label) for label in set(wanted)}
                return Reconstruction(torch.stack([means[label] for label in wanted]), told)
            chosen = torch.zeros(size, dtype=torch.int64)
            for label in sorted(set(wanted), key=lambda one: -1 if one is None else one):
                places = [place for place, other in enumerate(wanted) if other == label]
                members = prior.members(label)
                members = members if len(members) else prior.members()
                order = torch.randperm(len(members), generator=generator)
                # A batch larger than the prior guesses some records twice.
                order = order.repeat(-(-len(places) // len(members)))[: len(places)]
                chosen[places] = members[order]
            drawn = prior.records[chosen]
            return Reconstruction(drawn.x, drawn.y if told is None else told)

        return guess
