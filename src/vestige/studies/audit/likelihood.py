"""Identification by an attack's own likelihood: the place of a secret among its decoys."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from vestige.errors import BadInput
from vestige.interfaces import Observation, Reconstructor, StatesLikelihood
from vestige.records import Records


def likelihood_rank(
    reconstruct: Reconstructor,
    observe: Callable[[], Observation],
    secret: Records,
    decoys: Records,
    *,
    generator: torch.Generator,
) -> int | None:
    """Place of a secret (one record) among its decoys by likelihood; None where there is none.

    The secret stands at a random place, so that no order gives it away. Ties count against it, and
    a likelihood that is not a number is the lowest of all. Without leakage the rank is uniform or
    worse, by the same argument as for distances (``evidence``).
    """
    if not isinstance(reconstruct, StatesLikelihood) or len(secret) != 1 or not len(decoys):
        return None
    count = len(decoys) + 1
    order = torch.randperm(count, generator=generator)
    place = int(torch.nonzero(order == 0))
    together = Records(
        torch.cat([secret.x.to(decoys.x), decoys.x]),
        torch.cat([secret.y.to(decoys.y), decoys.y]),
        decoys.space,
    )
    found = reconstruct.log_likelihoods(observe(), together[order])
    if found is None:
        return None
    if tuple(found.shape) != (count,):
        raise BadInput(
            f"It returned likelihoods of shape {tuple(found.shape)} for {count} records: return "
            f"one number for each, shape ({count},)."
        )
    scores = found.detach().cpu().double()
    scores = torch.where(scores.isnan(), -math.inf, scores)
    return int((scores >= scores[place]).sum())
