"""How well candidates explain a captured release, beside candidates that never saw it.

An attack reports an objective of its own, and attacks minimise different ones. Here every attack's
candidates go through the victim's computation once more, and what is left of the release is
measured in one way. Nothing is judged: ``candidate_verdicts`` does that, from the numbers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from vestige.attacks.gradient_matching.matching import Matching, batch_size_of, labels_of
from vestige.errors import VestigeError
from vestige.interfaces import (
    GradientRelease,
    Observation,
    Public,
    Reconstruction,
    UpdateRelease,
)
from vestige.networks.token_model import predicts_tokens
from vestige.reports.inversion import Fit

RANDOM_BATCHES = 32
"""Batches of random candidates: their median is known to about a quarter of their spread."""


def measure_fit(
    name: str,
    public: Public,
    observation: Observation,
    runs: Sequence[Reconstruction],
    *,
    generator: torch.Generator,
) -> Fit:
    """What the runs of one attack leave unexplained; the first run is the one that is shown.

    Random candidates are records of the prior, of the candidates' labels where it has them; where
    nothing was collected they are uniform noise within the bounds of a record. They have the
    labels of the run that is shown.
    """
    release, best = observation.release, runs[0]
    if not isinstance(release, GradientRelease | UpdateRelease):
        return Fit(attack=name, unmeasured="Only gradients and updates are compared.")
    if len(best.candidates) == 0:
        return Fit(attack=name, unmeasured="The attack returned no candidate.")
    try:
        matching = Matching(public, release, batch_size_of(observation))
        found = [_compared(matching, observation, run) for run in runs]
    except VestigeError as error:
        return Fit(attack=name, unmeasured=str(error))
    residual, scale = found[0] or (None, None)
    if residual is None:
        return Fit(attack=name, unmeasured=_why_not(best, observation))
    labels = _labels(matching.public, observation, best)
    assert labels is not None
    drawn = [
        compare(matching, random_batch(public, labels, generator), labels)
        for _ in range(RANDOM_BATCHES)
    ]
    usual = [one[0] for one in drawn if one is not None]
    return Fit(
        attack=name,
        residual=residual,
        run_residuals=tuple(None if one is None else one[0] for one in found),
        scale=scale,
        random_residual=statistics.median(usual) if usual else None,
        random_batches=len(usual),
        noise=matching.noise_share * len(matching.observed),
        entries=len(matching.observed),
        unknowns=best.candidates.numel(),
    )


def compare(matching: Matching, x: Tensor, labels: Tensor) -> tuple[float, float] | None:
    """Residual and best scale of candidates x (n, *shape); None where nothing finite is released.

    The residual is written as the squared length of what is left, which keeps its digits where
    1 − cos² would round to zero.
    """
    if not bool(x.isfinite().all()):
        return None
    made = matching.simulated(
        x.detach().to(matching.like), matching.targets(labels), functional=False
    )
    made, seen = made.detach().double(), matching.observed.double()
    length, total = float(made.square().sum()), float(seen.square().sum())
    if not (math.isfinite(length) and total > 0):
        return None
    scale = float(made @ seen) / length if length > 0 else 0.0
    left = float((seen - max(scale, 0.0) * made).square().sum()) / total
    return min(left, 1.0), scale


def random_batch(public: Public, labels: Tensor, generator: torch.Generator) -> Tensor:
    """Candidates (n, *shape) that know nothing of a release but its labels."""
    if public.prior.collected and len(public.prior.records):
        rows = []
        for label in labels.tolist():
            members = public.prior.members(label)
            members = members if len(members) else public.prior.members()
            rows.append(members[int(torch.randint(len(members), (), generator=generator))])
        return public.prior.records.x[torch.stack(rows)]
    shape = (len(labels), *public.space.shape)
    if public.space.bounds is None:
        return torch.randn(shape, generator=generator)
    low, high = public.space.bounds
    return low + (high - low) * torch.rand(shape, generator=generator)


def _compared(
    matching: Matching, observation: Observation, run: Reconstruction
) -> tuple[float, float] | None:
    labels = _labels(matching.public, observation, run)
    return None if labels is None else compare(matching, run.candidates, labels)


def _labels(public: Public, observation: Observation, run: Reconstruction) -> Tensor | None:
    """The attack's labels, else those that were told or can be read off the release."""
    if run.labels is not None:
        return run.labels
    if predicts_tokens(public.simulator.model):
        return torch.zeros(len(run.candidates), dtype=torch.int64)
    if len(run.candidates) != batch_size_of(observation):
        return None
    return labels_of(public, observation)[0]


def _why_not(run: Reconstruction, observation: Observation) -> str:
    if not bool(run.candidates.isfinite().all()):
        return "The attack returned candidates that are not finite."
    if run.labels is None and len(run.candidates) != batch_size_of(observation):
        return "The attack returned no labels, and more or fewer candidates than there are records."
    return "What the candidates would have released is not finite."
