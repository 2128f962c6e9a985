"""The likelihood of a noisy gradient or update for each of several records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.attacks.gradient_matching.matching import Matching
from vestige.interfaces import Observation, Public, Reconstruction
from vestige.records import Records


def gaussian_log_likelihoods(
    public: Public, observation: Observation, records: Records
) -> Tensor | None:
    """−½ Σ (g − g̃(z))²/s² for each record z (n,): g the release, g̃(z) its replay, s the noise.

    The logarithm of the density of a release of one record under known Gaussian noise, up to a
    constant. None where there are several records or their number is unknown, where no noise is
    known, or where what is known of it is uncertain.
    """
    if observation.hints.batch_size != 1:
        return None
    matching = Matching(public, observation.release, 1)
    reading = matching.reading
    if not reading.noisy or not reading.certain:
        return None
    observed = matching.observed.double()
    deviation = torch.as_tensor(reading.deviation).to(observed)
    if deviation.dim() and matching.kept is not None:
        deviation = deviation.index_select(0, matching.kept)
    if not bool((deviation > 0).all()):
        return None
    found = []
    for x, y in zip(records.x, records.y):
        targets = matching.targets(y[None])
        replayed = matching.simulated(x[None].to(matching.like), targets, functional=False)
        apart = observed - replayed.detach().double()
        found.append(-0.5 * (apart / deviation).square().sum())
    return torch.stack(found).cpu()


@dataclass(frozen=True)
class GaussianReconstructor:
    """A reconstructor of noisy gradients that also says how likely records are."""

    reconstruct: Callable[[Observation, torch.Generator], Reconstruction]
    public: Public

    def __call__(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """Reconstruct."""
        return self.reconstruct(observation, generator)

    def log_likelihoods(self, observation: Observation, records: Records) -> Tensor | None:
        """See :func:`gaussian_log_likelihoods`."""
        return gaussian_log_likelihoods(self.public, observation, records)
