"""Small worlds of captured releases whose truth is known."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import torch

from vestige import Prior, Records
from vestige.interfaces import (
    GradientRelease,
    Hints,
    Observation,
    Public,
    Reconstruction,
)
from vestige.studies.captured.trials import KnownRelease
from vestige.victims import SharedGradient
from worlds import SPACE, draws, linear_network


@dataclass
class Painter:
    """An attack that returns what a function of the number of the release and labels paints.

    It never looks at the release; ``paint(number, labels)`` gives the candidates.
    """

    paint: object
    name: str = "Painter"
    summary: str = "paints"
    needs: str = "nothing"
    cites: str = "nobody"
    reads: tuple = (GradientRelease,)

    def __post_init__(self):
        self._numbers = count()

    def prepare(self, public, *, generator):
        def reconstruct(observation, attacker):
            return Reconstruction(self.paint(next(self._numbers), observation.hints.labels))

        return reconstruct


def grey(number: int, labels) -> torch.Tensor:
    return torch.full((len(labels), *SPACE.shape), 0.5)


def captured(batches: list[Records], prior: Records, *, real: bool = False) -> list[KnownRelease]:
    """One release of each batch; where it is not real, an empty one that no replay compares."""
    victim, held = SharedGradient(linear_network()), Prior(prior)
    public = Public(victim.simulator, held)
    return [
        KnownRelease(
            Observation(
                victim.release(batch, generator=torch.Generator().manual_seed(number))
                if real
                else GradientRelease({}),
                Hints(len(batch), batch.y),
            ),
            public,
            batch,
            f"release {number + 1}",
        )
        for number, batch in enumerate(batches)
    ]


def one_by_one(records: Records, size: int = 1) -> list[Records]:
    return [records[start : start + size] for start in range(0, len(records), size)]


def null_world(seed: int, trials: int, others: int) -> tuple[list[KnownRelease], Records]:
    """Releases of one record each and so many others, of one law; ``others`` counts all classes."""
    records = draws(trials + others, 40_000 + seed)
    # Labels go round, so any split by place leaves the classes balanced.
    return captured(one_by_one(records[:trials]), draws(30, 1)), records[trials:]
