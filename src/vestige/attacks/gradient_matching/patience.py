"""When a search gets nowhere: its distance to the release stays that of unrelated images."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.attacks.gradient_matching.matching import Matching
from vestige.attacks.gradient_matching.restarts import Stack
from vestige.records import ImageSpace

UNRELATED = 9
"""Batches of prior records whose median distance is that of unrelated images."""

RELATED = 1 / 3
"""Share of the distance of random images below which the prior's records are too close to the
release to be unrelated. On digits, faces and photographs that were, the share was .5 to 1.5."""

MARGIN = 0.15
"""Share by which a search must get below that distance; docs/choosing-attacks.md has the searches
that it was calibrated on."""

FEWEST = 10
"""Iterations before which no search is stopped, however few it has altogether."""


@dataclass
class Patience:
    """Stops a search whose distance is still that of unrelated images at iteration ``deadline``.

    Counted and not timed, so that a run can be repeated. ``unrelated`` gives the distance of
    unrelated images; it is asked only once.
    """

    deadline: int
    iterations: int
    unrelated: Callable[[], float]
    lost: bool = False

    @classmethod
    def of(
        cls, share: float, iterations: int, matching: Matching, stack: Stack, size: int
    ) -> Patience | None:
        """The patience of a search with so many iterations; None where no rule is known.

        That is for tables, for masked releases, and where the objective is not the distance alone.
        Under noise, a search that succeeded in the end had not left the distance of unrelated
        images after half of its iterations.
        """
        deadline = round(share * iterations)
        images = isinstance(matching.public.space, ImageSpace) and matching.kept is None
        if deadline < FEWEST or not images or stack.penalty is not None:
            return None
        return cls(deadline, iterations, lambda: unrelated_distance(matching, stack, size))

    def exhausted(self, step: int, best: Tensor) -> bool:
        """Whether a search is to be stopped whose restarts have reached these distances."""
        if step == self.deadline:
            self.lost = not float(best.min()) < (1 - MARGIN) * self.unrelated()
        return self.lost

    @property
    def remark(self) -> str:
        """What a reader is told of a search that was stopped; empty for others."""
        if not self.lost:
            return ""
        return (
            f"The search stopped after {self.deadline} of {self.iterations} iterations: the "
            "distance to the release fell no further than for unrelated images (patience=0 runs "
            "all iterations)."
        )


def unrelated_distance(matching: Matching, stack: Stack, size: int) -> float:
    """Median distance of batches of prior records, spread over the prior, from the release.

    Infinite where it is below ``RELATED`` of that of random images: then the prior holds copies of
    the secret, and its records are not unrelated.
    """
    records = matching.public.prior.records.x
    starts = torch.arange(UNRELATED) * max(1, len(records) // UNRELATED)
    known = [records[(start + torch.arange(size)) % len(records)] for start in starts.tolist()]
    shape, generator = (size, *matching.public.space.shape), torch.Generator().manual_seed(0)
    random = [torch.rand(shape, generator=generator) for _ in known]
    medians = []
    for batches in (known, random):
        simulated = [stack.simulate(x.to(matching.like), functional=False) for x in batches]
        distances = [stack.distance(one.detach()[None])[0] for one in simulated]
        medians.append(float(torch.cat(distances).median()))
    return medians[0] if medians[0] > RELATED * medians[1] else math.inf
