"""Guesses that use the prior only, not the release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from vestige.choices import check_fields
from vestige.interfaces import (
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
    told label where there is one; the average text has the most common token at each position.
    """

    kind: Literal["draw", "mean"] = "draw"

    is_guess = True
    reads_texts = True
    summary = "looks at the prior and the hints, never at the release"
    needs = "records of the same kind"
    cites = (
        "Balle, Cherubin, Hayes 2022, Reconstructing Training Data with Informed Adversaries, §4"
    )
    reads = (GradientRelease, UpdateRelease, ModelRelease, GradientSequenceRelease)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def name(self) -> str:
        """The name readers see."""
        return f"Guess: prior {self.kind}"

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Return the guesser; it needs no training."""
        prior = public.prior

        def guess(observation: Observation, generator: torch.Generator) -> Reconstruction:
            hinted = observation.hints.labels
            size = len(hinted) if hinted is not None else observation.hints.batch_size or 1
            wanted: list[int | None] = [None] * size if hinted is None else hinted.tolist()
            if self.kind == "mean":
                means = {label: prior.mean(label) for label in set(wanted)}
                return Reconstruction(torch.stack([means[label] for label in wanted]), hinted)
            chosen = torch.zeros(size, dtype=torch.int64)
            for label in sorted(set(wanted), key=lambda one: -1 if one is None else one):
                places = [place for place, other in enumerate(wanted) if other == label]
                members = prior.members(label)
                members = members if len(members) else prior.members()
                order = torch.randperm(len(members), generator=generator)
                # A batch larger than the prior guesses some records twice.
                order = order.repeat(-(-len(places) // len(members)))[: len(places)]
                chosen[places] = members[order]
            sample = prior.records[chosen]
            return Reconstruction(sample.x, sample.y if hinted is None else hinted)

        return guess
